// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// TargetKind says how a target is asked.
type TargetKind uint8

// The kinds of targets.
const (
	Plain      TargetKind = iota // over UDP, and over TCP when the answer is cut
	TCP                          // over TCP only
	ResolvConf                   // the nameservers of a resolv.conf, each as Plain
	TLS                          // over TLS (RFC 7858)
	HTTPS                        // over HTTP/2 and TLS (RFC 8484)
)

// Target is an upstream of a route. Targets that are the same compare equal.
type Target struct {
	Kind TargetKind

	// Addr is of all kinds but ResolvConf; the port is never 0. Its address is invalid
	// only for HTTPS, where the addresses are those of the route's Bootstrap.
	Addr netip.AddrPort

	// Name is what the certificate must be for with TLS and HTTPS: a host name in lower
	// case, without a dot at its end. Empty: it must be for the address.
	Name string

	Path string // of ResolvConf: absolute and clean; of HTTPS: what is asked for, from its first slash on
}

// The ports of targets that name none.
const (
	dnsPort   = 53
	tlsPort   = 853 // RFC 7858 section 3.1
	httpsPort = 443
)

// dnsQuery is the path of a target over HTTPS that names none, as most servers have it.
const dnsQuery = "/dns-query"

const portHint = "a port is a number from 1 to 65535"

// scheme is how a target over a kind of transport begins.
type scheme struct {
	name string
	kind TargetKind
	port uint16 // of a target that names none
}

// schemes are all there are. The first is that of a target that names none.
func schemes() []scheme {
	return []scheme{{"udp", Plain, dnsPort}, {"tcp", TCP, dnsPort}, {"tls", TLS, tlsPort}, {"https", HTTPS, httpsPort}}
}

// String returns the shortest spelling that a configuration can give t: 192.0.2.1,
// tcp://[2001:db8::1]:5353, tls://192.0.2.1#dns.example, https://dns.example, /etc/resolv.conf.
func (t Target) String() string {
	if t.Kind == ResolvConf {
		return t.Path
	}
	var s scheme
	for _, s = range schemes() {
		if s.kind == t.Kind {
			break
		}
	}
	text := t.authority(s.port)
	if t.Kind != Plain {
		text = s.name + "://" + text
	}
	if t.Kind == HTTPS && t.Path != dnsQuery {
		text += t.Path
	}
	if t.Name != "" && t.Addr.Addr().IsValid() {
		text += "#" + t.Name
	}
	return text
}

// authority is the host of t, with its port unless that is the usual one.
func (t Target) authority(usual uint16) string {
	addr := t.Addr.Addr()
	switch {
	case !addr.IsValid() && t.Addr.Port() == usual:
		return t.Name
	case !addr.IsValid():
		return t.Name + ":" + strconv.Itoa(int(t.Addr.Port()))
	case t.Addr.Port() != usual:
		return t.Addr.String()
	case addr.Is6() && t.Kind == HTTPS: // as other programs write it
		return "[" + addr.String() + "]"
	}
	return addr.String()
}

// targets reads the list of upstreams of a route.
func targets(dst *[]Target) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		if len(items) == 0 {
			n.report.add(Problem{Path: n.path, What: "empty", Hint: "name at least one upstream"})
			return
		}
		*dst = unique(items, node.target)
	}
}

// target returns the value of n when it is an upstream, and reports anything else.
func (n node) target() (Target, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return Target{}, false
	}
	t, f := parseTarget(text)
	return t, n.rejectFlaw(f)
}

// parseTarget reads IP or IP:port, with one of the schemes before it or none, or an absolute path.
func parseTarget(text string) (Target, flaw) {
	if strings.HasPrefix(text, "/") {
		return parsePath(text)
	}
	name, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return parseURL(schemes()[0], text, false)
	}
	for _, s := range schemes() {
		if s.name == name {
			return parseURL(s, rest, true)
		}
	}
	return Target{}, flaw{what: "not a scheme that is known", hint: "write udp://, tcp://, tls:// or https://"}
}

// parsePath reads the path of a resolv.conf.
func parsePath(text string) (Target, flaw) {
	path := filepath.Clean(text)
	if strings.HasSuffix(text, "/") || path == "/" || strings.ContainsRune(text, 0) {
		return Target{}, flaw{what: "not the path of a file"}
	}
	return Target{Kind: ResolvConf, Path: path}, flaw{}
}

// parseEndpoint reads an address with or without a port, in brackets or not.
func parseEndpoint(text string, port uint16) (netip.AddrPort, error) {
	if inner, found := strings.CutPrefix(text, "["); found && strings.HasSuffix(inner, "]") {
		if a, err := netip.ParseAddr(inner[:len(inner)-1]); err == nil && a.Is6() {
			return netip.AddrPortFrom(a, port), nil
		}
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, port), err
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// notATarget guesses what a text that is no target was meant to be.
func notATarget(text string, isURL bool) flaw {
	f := flaw{what: "not an IP address, a URL or a path"}
	if isURL {
		f.what = "not a URL of an IP address"
	}
	host, _, _ := strings.Cut(text, ":")
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case strings.HasSuffix(text, "/") && text != "/":
		if _, err := parseEndpoint(strings.TrimSuffix(text, "/"), dnsPort); err == nil {
			f.hint = "leave out the slash at the end"
		}
	case strings.HasPrefix(text, "./"), strings.HasPrefix(text, "../"), strings.HasSuffix(text, ".conf"):
		f.hint = "a path begins with a slash"
	case isAddress(host):
		f.hint = portHint
	case last != "" && !isDigits(last) && !strings.ContainsAny(text, "/[]"):
		f.hint = "a host name would have to be resolved first: write its address"
	}
	return f
}
