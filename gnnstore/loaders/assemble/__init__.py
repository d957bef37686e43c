"""The assembly of a sample and its rows into the object that training sees."""
