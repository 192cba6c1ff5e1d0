// Package termtest tests that text chosen by others does no harm on a terminal.
package termtest
