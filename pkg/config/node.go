// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"
)

// Interface is the section interface.
type Interface struct {
	// `true`: the agent makes the link, puts every listen address on it, and repairs both. Needs NET_ADMIN.
	Manage bool `yaml:"manage"`
	// The name of the link, unless kind is `lo`.
	Name string `yaml:"name" format:"link"`
	// `dummy`, `bridge` (without ports), `lo` (the loopback link) or `auto`, the first of these that the kernel
	// supports. On Cilium `auto` is no bridge.
	Kind string `yaml:"kind" words:"auto,dummy,bridge,lo"`
}

// Intercept is the section intercept.
type Intercept struct {
	// `true`: the agent writes and repairs the rules. Needs NET_ADMIN, with iptables NET_RAW too.
	Manage bool `yaml:"manage"`
	// The address that pods query: `link-local` (a listen address) or `transparent` (the DNS Service's; needs port 53).
	Mode string `yaml:"mode" words:"link-local,transparent"`
	// The kernel interface for the rules: `nftables`, `iptables` or `auto` (kube-proxy's).
	Backend string `yaml:"backend" words:"auto,nftables,iptables"`
	// The length of the lease. Once it expires, the fallback gets the queries.
	Lease time.Duration `yaml:"lease" min:"1s" max:"1m"`
	// The servers that get the queries in mode `link-local` while the agent does not answer: `central` (those of
	// cluster.central), `none`, or a list of servers. A Service's address does not work here, nor in
	// cluster.central.addresses with `central`. In mode `transparent` the Service gets the queries, or with
	// serviceExcluded the fallback.
	Fallback Fallback `yaml:"fallback"`
	// What happens to link and rules when the agent ends: `fallback` (they stay, and queries go to the fallback),
	// `remove`, or `auto`: fallback in mode `link-local` and with serviceExcluded, else remove.
	OnExit string `yaml:"onExit" words:"auto,fallback,remove"`
	// The IP addresses of the DNS Service, for mode `transparent`. Empty: those of cluster.central.service.
	Services []netip.Addr `yaml:"services" format:"serviceAddress"`
	// `true`, for mode `transparent`: the data plane leaves packets to the DNS Service as they are, as Antrea does with
	// skipServices, so that nothing but the agent answers there. Calico's annotation natExcludeService on
	// cluster.central.service says so without this key.
	ServiceExcluded bool `yaml:"serviceExcluded"`
}

// FallsBack reports whether the fallback gets the queries while the agent does not answer. Otherwise the Service does.
func (i Intercept) FallsBack() bool { return i.Mode == ModeLinkLocal || i.ServiceExcluded }

// Exit returns what happens to link and rules when the agent ends: OnExit, or what ExitAuto stands for.
func (i Intercept) Exit() string {
	switch {
	case i.OnExit != ExitAuto:
		return i.OnExit
	case !i.FallsBack():
		return ExitRemove
	default:
		return ExitFallback
	}
}

// Kernel is the section kernel.
type Kernel struct {
	// `off`; `auto`: if this node's kernel supports it; `on`: the agent does not start without it. An agent that started
	// with `off` needs a restart for a change.
	Hits string `yaml:"hits" words:"off,auto,on"`
	// The memory of the answers, 1 KiB each. A change needs a restart.
	Size int64 `yaml:"size" format:"size" min:"64Ki" max:"8Mi"` // in bytes
	// How long the kernel answers a pod after the agent has answered it. A rule or NetworkPolicy that begins to deny DNS
	// takes effect after this time.
	Permit time.Duration `yaml:"permit" min:"1s" max:"1m"`
	// How long the kernel gives a pod the answer for a name after the agent has given it. Policy engines that learn names
	// from DNS replies do not see those of the kernel: set less than they remember a name. `0s`: 10 s if this node has
	// such an engine that the agent knows, kube-network-policies, else no limit.
	PermitName time.Duration `yaml:"permitName" max:"1m"`
}

// Handover is the section handover.
type Handover struct {
	// The path of a unix socket that both agents can reach, such as `/run/node-cache/handover.sock`. Empty: a new agent
	// waits until the addresses are free.
	Socket string `yaml:"socket" format:"socket"`
}
