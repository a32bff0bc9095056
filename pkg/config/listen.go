// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Listen is the section listen.
type Listen struct {
	// IP addresses. `0.0.0.0` is every IPv4 address, `::` every address.
	Addresses []netip.Addr `yaml:"addresses" format:"listenAddress" required:"name at least one address"`
	// The port.
	Port uint16 `yaml:"port" min:"1" max:"65535"`
	// The largest answer over UDP, in bytes. Above 1232, networks may drop it as fragments.
	UDPSize int `yaml:"udpSize" min:"512" max:"4096"`
	// DNS over TLS (RFC 7858) at the same addresses, besides UDP and TCP.
	ListenTLS `yaml:"tls"`
}

// ListenTLS is the section listen.tls.
type ListenTLS struct {
	// The port.
	TLSPort uint16 `yaml:"port" min:"1" max:"65535"`
	// A file with a certificate and those of its issuers (PEM). The agent reads a changed file. Empty: no TLS.
	Cert string `yaml:"cert" format:"path"` // absolute unless Parse has read a relative path
	// The file with its key (PEM).
	Key string `yaml:"key" format:"path"` // absolute unless Parse has read a relative path
}

// checkListen reports each address that an unspecified address in the list includes.
func checkListen(d *decoder, list []netip.Addr) {
	if !d.clean("listen.addresses") {
		return
	}
	wides := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !a.IsUnspecified() })
	for i, a := range list {
		wide := slices.IndexFunc(wides, func(wide netip.Addr) bool { return a != wide && covers(wide, a) })
		if wide >= 0 {
			d.report(fmt.Sprintf("listen.addresses[%d]", i),
				fmt.Sprintf("%s: already covered by %s", quote(a.String()), wides[wide]),
				"list single addresses, or the unspecified one alone")
		}
	}
}

// checkListenTLS reports files of listen.tls that are not a pair, and a port that is not free or not used.
func checkListenTLS(d *decoder, l *Listen) {
	d.check((l.Cert == "") != (l.Key == ""), "listen.tls.cert", "needs listen.tls.key, and that needs this one", "set both, or none of them", "listen.tls.key")
	d.check(l.Cert != "" && l.TLSPort == l.Port, "listen.tls.port", fmt.Sprintf("%d: taken by listen.port", l.Port), "choose another port", "listen.port")
}

// takenBy returns which key of listen takes an address; empty: none does.
func (l *Listen) takenBy(at netip.AddrPort) string {
	overlaps := slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return covers(a, at.Addr()) || covers(at.Addr(), a) })
	switch {
	case !at.IsValid() || !overlaps:
	case at.Port() == l.Port:
		return "listen"
	case l.Cert != "" && at.Port() == l.TLSPort:
		return "listen.tls"
	}
	return ""
}

// checkAdmin reports an admin address that the DNS sockets take.
func checkAdmin(d *decoder, c *Config) {
	admin := c.Admin.Address
	if by := c.Listen.takenBy(admin); by != "" && d.clean("listen", "admin") {
		d.report("admin.address", quote(admin.String())+": taken by "+by, "choose another port")
	}
	checkAdminTLS(d, c)
}

// checkAdminTLS reports an address of admin.tls that other sockets take, and files that are not used.
func checkAdminTLS(d *decoder, c *Config) {
	at, other := c.Admin.TLSAddress, c.Admin.Address
	by := c.Listen.takenBy(at)
	if at.IsValid() && at.Port() == other.Port() && (covers(other.Addr(), at.Addr()) || covers(at.Addr(), other.Addr())) {
		by = "admin.address"
	}
	d.check(by != "", "admin.tls.address", quote(at.String())+": taken by "+by, "choose another port", "listen", "admin.address")
	d.check((c.Admin.Cert == "") != (c.Admin.Key == ""), "admin.tls.cert", "needs admin.tls.key, and that needs this one", "set both, or none of them", "admin.tls.key")
	d.check(c.Admin.Cert != "" && !at.IsValid(), "admin.tls.cert", "a file: needs admin.tls.address", "set that too", "admin.tls.address")
}
