"""From a sample and its rows to the object that training sees."""
