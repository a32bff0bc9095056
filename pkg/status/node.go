// SPDX-License-Identifier: Apache-2.0

package status

// Node is the agent's state in the kernel.
type Node struct {
	Token     string     `json:"token"`               // the agent's owner token in the kernel
	Link      *Link      `json:"link,omitempty"`      // nil: interface.manage is false
	Intercept *Intercept `json:"intercept,omitempty"` // nil: intercept.manage is false
}

// Link is the link that holds the agent's addresses.
type Link struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Why       string   `json:"why,omitempty"` // why it is of this kind and not of a better one
	Held      []string `json:"held"`          // addresses present
	Missing   []string `json:"missing"`       // addresses missing, and why
	Elsewhere []string `json:"elsewhere"`     // addresses that another link has as well, and its name
	Repairs   uint64   `json:"repairs"`
	Contested bool     `json:"contested,omitempty"` // another program undoes the repairs
	StoodDown bool     `json:"stoodDown,omitempty"` // a newer agent has the link
	LastError string   `json:"lastError,omitempty"`
}

// Intercept is how the node's queries reach the agent.
type Intercept struct {
	Mode      string   `json:"mode"`
	Backend   string   `json:"backend"`
	DataPlane string   `json:"dataPlane"` // Service implementation of the node; "none": not detected
	Note      string   `json:"note,omitempty"`
	Leases    []Lease  `json:"leases"`
	Fallback  []string `json:"fallback"`               // where queries go while no lease is held
	From      string   `json:"fallbackFrom,omitempty"` // intercept.fallback; empty in transparent mode
	Renewals  uint64   `json:"renewals"`
	Repairs   uint64   `json:"repairs"` // times that the rules had to be corrected
	LastError string   `json:"lastError,omitempty"`
	StoodDown bool     `json:"stoodDown,omitempty"` // a newer agent has the rules
	NewOwner  string   `json:"newOwner,omitempty"`
	Waiting   string   `json:"waitsFor,omitempty"` // what must be known before the rules can be made
}

// Lease is the lease on one listen address.
type Lease struct {
	Address string `json:"address"`
	Held    bool   `json:"held"`
	Problem string `json:"problem,omitempty"` // why the last renewal failed
}

// A Socket is a socket of another process that is bound to the agent's address and port.
type Socket struct {
	Socket  string `json:"socket"`  // such as udp://169.254.20.10:53
	Process string `json:"process"` // or its user, if the process is not visible
	Inode   uint64 `json:"inode"`
}
