module example.org/user

go 1.25.0

require cleat v0.0.0

replace cleat => ../../..
