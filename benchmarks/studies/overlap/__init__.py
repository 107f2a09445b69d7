"""What does the overlap schedule bring?"""
