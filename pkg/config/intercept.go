// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Interface says whether the agent puts the listen addresses on a link of this machine.
type Interface struct {
	Manage bool     // the link and its addresses are made, and kept; default false
	Name   string   // of the link, a name that the kernel takes, not of LinkLoopback; default "nodelocaldns"
	Kind   LinkKind // default LinkAuto
}

// LinkKind says what kind of link holds the addresses.
type LinkKind uint8

// The kinds of links.
const (
	LinkAuto     LinkKind = iota // the first of the following that the kernel has
	LinkDummy                    // a dummy link
	LinkBridge                   // a bridge without ports
	LinkLoopback                 // the machine's loopback link, which has a name of its own
)

func (LinkKind) words() []string { return []string{"auto", "dummy", "bridge", "lo"} }

// String returns the spelling of k in a configuration.
func (k LinkKind) String() string { return spell(k) }

// Intercept says whether rules of the kernel hand this machine's DNS queries to the agent, and where those go that it cannot take.
type Intercept struct {
	Manage   bool             // the rules are made, and kept; default false
	Mode     InterceptMode    // default ModeLinkLocal
	Backend  InterceptBackend // default BackendAuto
	Lease    time.Duration    // queries go elsewhere when the agent has not proved for so long that it answers, 1s..1m; default 3s
	Fallback Fallback         // of ModeLinkLocal; default Central
	OnExit   OnExit           // default ExitAuto
	Services []netip.Addr     // of ModeTransparent: the addresses of the DNS service, at most one of a family; default empty: those of Central.Service
}

// Exit is what happens to link and rules at the end of the agent: OnExit, or what ExitAuto stands for.
func (i Intercept) Exit() OnExit {
	switch {
	case i.OnExit != ExitAuto:
		return i.OnExit
	case i.Mode == ModeTransparent:
		return ExitRemove
	default:
		return ExitFallback
	}
}

// Fallback says where the queries go that the agent does not take. The zero value: nowhere.
type Fallback struct {
	Central   bool             // to the cluster's central resolver; Addresses is empty then
	Addresses []netip.AddrPort // unique, the port is never 0
}

// String returns the spelling of f in a configuration: central, none, or a list.
func (f Fallback) String() string {
	switch {
	case f.Central:
		return "central"
	case len(f.Addresses) == 0:
		return "none"
	default:
		return flowList(f.Addresses)
	}
}

// InterceptMode says which address is asked by those whose queries the agent takes.
type InterceptMode uint8

// The modes.
const (
	ModeLinkLocal   InterceptMode = iota // a listen address
	ModeTransparent                      // the address of the DNS service
)

func (InterceptMode) words() []string { return []string{"link-local", "transparent"} }

// String returns the spelling of m in a configuration.
func (m InterceptMode) String() string { return spell(m) }

// InterceptBackend says through what the rules reach the kernel.
type InterceptBackend uint8

// The backends.
const (
	BackendAuto     InterceptBackend = iota // what kube-proxy uses on this machine
	BackendNftables                         // nftables
	BackendIptables                         // the iptables programs
)

func (InterceptBackend) words() []string { return []string{"auto", "nftables", "iptables"} }

// String returns the spelling of b in a configuration.
func (b InterceptBackend) String() string { return spell(b) }

// OnExit says what the agent does with link and rules when it ends.
type OnExit uint8

// What the agent does when it ends.
const (
	ExitAuto     OnExit = iota // ExitFallback with ModeLinkLocal, ExitRemove with ModeTransparent
	ExitFallback               // link and rules stay, and queries go to the fallback
	ExitRemove                 // link and rules go
)

func (OnExit) words() []string { return []string{"auto", "fallback", "remove"} }

// String returns the spelling of o in a configuration.
func (o OnExit) String() string { return spell(o) }

// maxLinkName is IFNAMSIZ without the zero byte at its end.
const maxLinkName = 15

// linkName reads the name of a link that the agent may make.
func linkName(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		if n.rejectFlaw(linkNameFlaw(text)) {
			*dst = text
		}
	}
}

// linkNameFlaw is stricter than the kernel, which takes every byte but the slash, the
// colon and white space: other programs read some of them as patterns.
func linkNameFlaw(text string) flaw {
	odd := func(c rune) bool { return !strings.ContainsRune("-_.", c) && !isLetterOrDigit(c) }
	switch {
	case len(text) > maxLinkName:
		return flaw{what: "longer than 15 bytes, the most a link's name can have"}
	case text == "lo":
		return flaw{what: "the name of the loopback link", hint: "write kind: lo to have the addresses there"}
	case text == "all", text == "default": // of /proc/sys/net/ipv4/conf
		return flaw{what: "stands for other links", hint: "choose another name"}
	case strings.Trim(text, ".") == "", strings.HasPrefix(text, "-"), strings.ContainsFunc(text, odd):
		return flaw{what: "not the name of a link", hint: "letters, digits, -, _ and ., 1 to 15 bytes"}
	}
	return flaw{}
}

// fallback reads central, none, or a list of addresses with or without a port.
func fallback(dst *Fallback) func(node) {
	return func(n node) {
		if text, ok := n.str(); ok {
			switch text {
			case "central":
				*dst = Fallback{Central: true}
			case "none":
				*dst = Fallback{}
			default:
				n.reject("not central, none or a list of addresses", fallbackHint(text))
			}
			return
		}
		if n.text[0] != '[' {
			n.reject("not central, none or a list of addresses", "")
			return
		}
		var list []netip.AddrPort
		set(&list, node.server)(n)
		if list == nil && n.report.clean(n.path) {
			n.report.add(Problem{Path: n.path, What: "empty", Hint: "write none, or name at least one address"})
		}
		*dst = Fallback{Addresses: list}
	}
}

func fallbackHint(text string) string {
	if _, err := parseEndpoint(text, dnsPort); err == nil {
		return "write [" + quote(text) + "]"
	}
	return didYouMean(text, []string{"central", "none"})
}

// services reads the addresses of the DNS service, at most one of a family.
func services(dst *[]netip.Addr) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		var list []netip.Addr
		for _, item := range items {
			a, ok := item.address()
			switch {
			case !ok:
			case a.IsUnspecified(), a.IsLoopback(), a.Zone() != "":
				item.reject("not the address of a service", "")
			case slices.ContainsFunc(list, func(other netip.Addr) bool { return other.Is4() == a.Is4() }):
				item.reject("the second of its family", "name one IPv4 address, one IPv6 address or one of each")
			default:
				list = append(list, a)
			}
		}
		*dst = list
	}
}
