// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"path/filepath"
	"strings"
)

// TargetKind says how a target is asked.
type TargetKind uint8

// The kinds of targets.
const (
	Plain      TargetKind = iota // over UDP, and over TCP when the answer is cut
	TCP                          // over TCP only
	ResolvConf                   // the nameservers of a resolv.conf, each as Plain
)

// Target is an upstream of a route. Targets that are the same compare equal.
type Target struct {
	Kind TargetKind
	Addr netip.AddrPort // of Plain and TCP; the port is never 0
	Path string         // of ResolvConf: absolute and clean
}

// dnsPort is the port of a target that names none.
const dnsPort = 53

const portHint = "a port is a number from 1 to 65535"

// String returns the shortest spelling that a configuration can give t: 192.0.2.1, tcp://[2001:db8::1]:5353, /etc/resolv.conf.
func (t Target) String() string {
	if t.Kind == ResolvConf {
		return t.Path
	}
	text := t.Addr.String()
	if t.Addr.Port() == dnsPort {
		text = t.Addr.Addr().String()
	}
	if t.Kind == TCP {
		return "tcp://" + text
	}
	return text
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

// parseTarget reads IP, IP:port, either with udp:// or tcp:// before it, or an absolute path.
func parseTarget(text string) (Target, flaw) {
	if strings.HasPrefix(text, "/") {
		return parsePath(text)
	}
	scheme, rest, isURL := strings.Cut(text, "://")
	t := Target{Kind: Plain}
	switch {
	case !isURL:
		rest = text
	case scheme == "tcp":
		t.Kind = TCP
	case scheme != "udp":
		return Target{}, flaw{what: "not a scheme that is known", hint: "write udp:// or tcp://"}
	}
	var err error
	t.Addr, err = parseEndpoint(rest)
	if err != nil {
		return Target{}, notATarget(rest, isURL)
	}
	return t, serverFlaw(t.Addr)
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
func parseEndpoint(text string) (netip.AddrPort, error) {
	if end, found := strings.CutPrefix(text, "["); found && strings.HasSuffix(end, "]") {
		text += ":53"
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, dnsPort), err
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
		if _, err := parseEndpoint(strings.TrimSuffix(text, "/")); err == nil {
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
