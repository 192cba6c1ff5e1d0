// Package man has the command man, which writes manual pages from the commands' help.
package man
