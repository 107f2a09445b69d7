"""What do requests feel when load rises past saturation?"""
