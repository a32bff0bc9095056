// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/sockets"
)

// Facts are the observations on a node. The error beside a fact says why it is missing.
type Facts struct {
	Capabilities Capabilities
	Addresses    []Address // those of Rules.Addresses that are on a link
	AddressErr   error
	Sockets      []sockets.Socket // that receive packets to Rules.Addresses and Rules.Port
	SocketsErr   error
	Backends     []BackendState // each backend that holds anything of an agent
	BackendErrs  []error

	Node    []Outcome // of probes from the node
	Pod     []Outcome // of probes from the pod
	PodErr  error
	Drops   []Drop // of the pod's packets; nil if none were lost
	DropErr error

	Fallback []Outcome // of a query to each fallback

	Status    string // from the agent's status page: "ready", or why not
	StatusErr error

	Conntrack Conntrack

	DataPlane    dataplane.Found
	DataPlaneErr error

	Kubelet Kubelet
	Pods    map[string]int // how many pods have a nameserver in their resolv.conf
	PodsErr error
}

// Capabilities are those of the doctor, and of the agent if it is visible.
type Capabilities struct {
	Missing      []string // those the doctor uses and lacks
	AgentPID     int      // the process that listens; 0: unknown
	AgentMissing []string // those the agent needs and lacks
}

// An Address is an address on a link.
type Address struct {
	Addr  netip.Addr
	Link  string
	Kind  string // "dummy", "bridge", "device" for lo, …
	Alias string
}

// BackendState is what a backend holds.
type BackendState struct {
	Backend string
	State   rules.State
}

// A Probe is one query.
type Probe struct {
	To    netip.AddrPort `json:"to"`
	TCP   bool           `json:"tcp"`
	Own   bool           `json:"own"`   // with the agent's mark: no rule redirects it
	Name  string         `json:"name"`  // to query, of type A; empty: the self-query
	Agent string         `json:"agent"` // the token that the self-query asks to confirm; empty: none, which works only from the node
}

// An Outcome is the result of a probe.
type Outcome struct {
	Probe
	From    netip.AddrPort `json:"from"`    // of the query
	Answer  string         `json:"answer"`  // name of the rcode; empty: no answer
	Records int            `json:"records"` // in the answer
	Token   string         `json:"token"`   // of the agent that answered the self-query; empty: none
	Took    time.Duration  `json:"took"`
	Error   string         `json:"error"` // why there is no answer
	Refused bool           `json:"refused"`

	Tracked    bool   `json:"-"` // the node has a conntrack entry for it
	TrackedErr string `json:"-"` // why Tracked is unknown
}

// Conntrack is the fill level of the conntrack table.
type Conntrack struct {
	Count, Max int
	Err        error
}

// Kubelet is the DNS configuration of the node's kubelet for pods.
type Kubelet struct {
	DNS  []string // nameservers; empty with From: none configured
	From string   // where it is configured; empty: no kubelet visible
	Err  error
}

// A Drop is a rule or policy of the node that dropped packets of the pod.
type Drop struct {
	Where  string // table and chain
	Rule   string // in the syntax of its program; empty: the chain's policy
	Policy bool
}
