// Package policy says what a namespaced process may reach, by address and by
// name.
package policy
