// Package keep has the command keep, which keeps attachments alive.
package keep
