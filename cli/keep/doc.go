// Package keep has the command keep, a daemon that keeps attachments (package network/keep).
package keep
