package sandbox

import "cleat/internal/ledger"

// Charged is what the network's guest has caused, as far as it is charged to the ledger.
func (n *Network) Charged() ledger.Cost { return n.ledger.Usage().Used }
