package sandbox

import "cleat/internal/ledger"

// Charged returns what the network's guest is charged for.
func (n *Network) Charged() ledger.Cost { return n.ledger.Usage().Used }
