"""The methods, one file for each noun: a handler takes the call and a record of parameters and returns a record."""
