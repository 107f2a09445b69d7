"""Does the policy follow phases that accept differently?"""
