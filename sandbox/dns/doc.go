// Package dns answers the guest's DNS questions with the host's resolvers.
package dns
