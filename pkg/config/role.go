// SPDX-License-Identifier: Apache-2.0

package config

// Role says which program a plan is for. It decides what an absent key means, and which values contradict the program.
type Role uint8

// The roles.
const (
	Agent    Role = iota // node-cache agent: one on every node
	Resolver             // node-cache resolver: the central resolver of a cluster
)

func (Role) words() []string { return []string{"agent", "resolver"} }

// String returns the command that the role is named after.
func (r Role) String() string { return spell(r) }
