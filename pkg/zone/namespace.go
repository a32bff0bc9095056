// SPDX-License-Identifier: Apache-2.0

package zone

import "sync/atomic"

// A namespace is a name that a Namespace object or a service shows to exist.
type namespace struct {
	label    string // in wire form
	declared atomic.Bool
	services atomic.Int32
}

// exists tells whether the node of the namespace exists. A service in it proves
// it, though the Namespace object has not come yet.
func (n *namespace) exists() bool {
	return n != nil && (n.declared.Load() || n.services.Load() > 0)
}
