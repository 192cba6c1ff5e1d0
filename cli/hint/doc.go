// Package hint has errors that tell the user what to type next, and errors about the command
// line. Errors of other packages carry hints as well, if they have a method
//
//	Hint() string
package hint
