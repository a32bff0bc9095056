// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"strings"
)

// serviceName reads a namespace and a name. The empty string is the zero value.
func serviceName(dst *ServiceName) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		namespace, name, _ := strings.Cut(text, "/")
		switch {
		case text == "", isLabel(namespace) && isLabel(name):
			*dst = ServiceName{Namespace: namespace, Name: name}
		case isLabel(text):
			n.reject("not a service with its namespace", "write it like kube-system/"+text)
		default:
			n.reject("not a service with its namespace", "write it like kube-system/kube-dns, in lower case")
		}
	}
}

// server returns the value of n when it is an address with or without a port, and reports anything else.
func (n node) server() (netip.AddrPort, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return netip.AddrPort{}, false
	}
	a, err := parseEndpoint(text, dnsPort)
	if err != nil {
		f := notATarget(text, false)
		f.what = "not an IP address with or without a port"
		if strings.Contains(text, "://") {
			f.hint = "write the address alone: it is always asked over TCP"
		}
		return netip.AddrPort{}, n.rejectFlaw(f)
	}
	return a, n.rejectFlaw(serverFlaw(a))
}

// serverFlaw says what keeps an address and a port from being those of a server.
func serverFlaw(a netip.AddrPort) flaw {
	switch {
	case a.Port() == 0:
		return flaw{what: "port 0", hint: portHint}
	case a.Addr().IsUnspecified():
		return flaw{what: "not the address of one host"}
	}
	return addressFlaw(a.Addr())
}
