// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/sockets"
)

// Facts are what was seen of a node. An error beside a fact says why it is not there.
type Facts struct {
	Rights    Rights
	Addresses []Address // of Rules.Addresses, those that are on a link
	NoAddress error
	Sockets   []sockets.Socket // that take what is sent to Rules.Addresses and Rules.Port
	NoSockets error
	Held      []Held // of each backend that holds anything of an agent's
	NoHeld    []error

	Node   []Outcome // of probes from the node
	Pod    []Outcome // of probes from the pod
	NoPod  error
	Drops  []Drop // of what the pod sent; nil when there was nothing to look for
	NoDrop error

	Fallback []Outcome // of a query to each fallback

	Status   string // what the agent says of itself: "ready", or why not
	NoStatus error

	Conntrack Conntrack

	DataPlane   dataplane.Found
	NoDataPlane error

	Kubelet Kubelet
	Pods    map[string]int // how many pods have a nameserver in their resolv.conf
	NoPods  error
}

// Rights are those of the doctor, and of the agent where it can be seen.
type Rights struct {
	Missing []string // of the doctor, of those that it can use
	Agent   int      // process that listens; 0: unknown
	Lacks   []string // of the agent, of those that it needs
}

// An Address is one that is on a link.
type Address struct {
	Addr  netip.Addr
	Link  string
	Kind  string // "dummy", "bridge", "device" for lo, …
	Alias string
}

// Held is what a backend holds.
type Held struct {
	Backend string
	State   rules.State
}

// A Probe is one query.
type Probe struct {
	To    netip.AddrPort `json:"to"`
	TCP   bool           `json:"tcp"`
	Own   bool           `json:"own"`   // with the agent's mark: to the agent's own socket, past all rules
	Name  string         `json:"name"`  // to ask for, of type A; empty: the self-query
	Agent string         `json:"agent"` // the token that the self-query is to have confirmed; empty: none, only a process of the node is answered
}

// An Outcome is what became of a probe.
type Outcome struct {
	Probe
	From    netip.AddrPort `json:"from"`    // of the query
	Answer  string         `json:"answer"`  // the rcode's name; empty: none came
	Records int            `json:"records"` // in the answer
	Token   string         `json:"token"`   // of the agent that answered the self-query; empty: no agent did
	Took    time.Duration  `json:"took"`
	Error   string         `json:"error"` // why no answer came
	Refused bool           `json:"refused"`

	Tracked bool   `json:"-"` // the node has a connection for it
	Unknown string `json:"-"` // why that is not known
}

// Conntrack is how full the table of connections is.
type Conntrack struct {
	Count, Max int
	Err        error
}

// Kubelet is what the kubelet of the node hands out to pods.
type Kubelet struct {
	DNS  []string // nameservers; empty with From: it hands out none
	From string   // where that stands; empty: no kubelet is to be seen
	Err  error
}

// A Drop is a place in the node's rules that dropped packets of the pod.
type Drop struct {
	Where  string // table and chain
	Rule   string // as its program prints it; empty: the chain's policy
	Policy bool
}
