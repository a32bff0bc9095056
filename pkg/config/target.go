// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// TargetKind says how a target is asked.
type TargetKind uint8

// The kinds of targets.
const (
	Plain      TargetKind = iota // over UDP, and over TCP after a truncated answer
	TCP                          // over TCP only
	ResolvConf                   // the nameservers of a resolv.conf, each as Plain
	TLS                          // over TLS (RFC 7858)
	HTTPS                        // over HTTP/2 and TLS (RFC 8484)
	None                         // no upstream: the queries fail
)

// Target is an upstream of a route. Targets that are the same compare equal.
type Target struct {
	Kind TargetKind

	// Addr is of all kinds but ResolvConf and None; the port is never 0. Its address is invalid
	// only for HTTPS, where the addresses are those of the route's Bootstrap.
	Addr netip.AddrPort

	// Name is what the certificate must be for with TLS and HTTPS: a host name in lower
	// case, without a dot at its end. Empty: it must be for the address.
	Name string

	Path string // ResolvConf: the file, absolute and clean; HTTPS: the path in the URL, with its first slash; else empty
}

// The ports of targets that name none.
const (
	tlsPort   = 853 // RFC 7858 section 3.1
	httpsPort = 443
)

// dnsQuery is the path of a target over HTTPS that names none, as most servers have it.
const dnsQuery = "/dns-query"

// schemes are the beginnings of targets, before ://. A target that names none is Plain.
func schemes() map[TargetKind]string {
	return map[TargetKind]string{Plain: "udp", TCP: "tcp", TLS: "tls", HTTPS: "https"}
}

// usualPort returns the port of a target that names none.
func (k TargetKind) usualPort() uint16 {
	switch k {
	case TLS:
		return tlsPort
	case HTTPS:
		return httpsPort
	default:
		return dnsPort
	}
}

// String returns the shortest spelling that a configuration can give t: 192.0.2.1,
// tcp://[2001:db8::1]:5353, tls://192.0.2.1#dns.example, https://dns.example, /etc/resolv.conf.
func (t Target) String() string {
	switch t.Kind {
	case ResolvConf:
		return t.Path
	case None:
		return noTarget
	case Plain, TCP, TLS, HTTPS:
	}
	text := t.authority(t.Kind.usualPort())
	if t.Kind != Plain {
		text = schemes()[t.Kind] + "://" + text
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
	case addr.Is6() && t.Kind == HTTPS: // an IPv6 address in a URL has brackets even without a port
		return "[" + addr.String() + "]"
	}
	return addr.String()
}

// noTarget is the text of [None].
const noTarget = "none"

// parseRouteTarget reads an item of forward[].to.
func parseRouteTarget(text string) (Target, *Problem) {
	if text == noTarget {
		return Target{Kind: None}, nil
	}
	return parseTarget(text)
}

// parseTarget reads IP or IP:port, with one of the schemes before it or none, or an absolute path.
func parseTarget(text string) (Target, *Problem) {
	if strings.HasPrefix(text, "/") {
		return parsePath(text)
	}
	name, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return parseURL(Plain, text, false)
	}
	for kind, scheme := range schemes() {
		if scheme == name {
			return parseURL(kind, rest, true)
		}
	}
	return Target{}, problem("not a scheme that is known", "write udp://, tcp://, tls:// or https://")
}

// parsePath reads the path of a resolv.conf.
func parsePath(text string) (Target, *Problem) {
	path := filepath.Clean(text)
	if strings.HasSuffix(text, "/") || path == "/" || strings.ContainsRune(text, 0) {
		return Target{}, problem("not the path of a file", "")
	}
	return Target{Kind: ResolvConf, Path: path}, nil
}

// parseURL reads what stands behind a scheme: an address or, with HTTPS, a host name, then a port, a path and a
// name, as far as the scheme has use for them. isURL reports whether the scheme was written.
func parseURL(kind TargetKind, text string, isURL bool) (Target, *Problem) {
	t := Target{Kind: kind}
	rest, name, named := strings.Cut(text, "#")
	if named {
		var p *Problem
		if t.Name, p = parseFragment(kind, name); p != nil {
			return Target{}, p
		}
	}
	if kind == HTTPS {
		host, path, _ := strings.Cut(rest, "/")
		var p *Problem
		if t.Path, p = parseURLPath(strings.TrimPrefix(rest, host), path); p != nil {
			return Target{}, p
		}
		rest = host
	}
	var err error
	t.Addr, err = parseEndpoint(rest, kind.usualPort())
	switch {
	case err == nil:
		return t, serverProblem(t.Addr)
	case kind == HTTPS:
		return parseNamed(t, rest)
	}
	p := notAnAddress(rest, isURL)
	if host, _, _ := strings.Cut(rest, ":"); kind == TLS && !named && hostNameProblem(host) == nil {
		p.Hint = "write its address with the name behind it, like tls://192.0.2.1#" + hostName(host)
	}
	return Target{}, p
}

// parseFragment reads the name behind an address.
func parseFragment(kind TargetKind, name string) (string, *Problem) {
	withName := kind == TLS || kind == HTTPS
	switch {
	case !withName && isDigits(name):
		return "", problem("a # behind the address", "write the port behind a colon")
	case !withName:
		return "", problem("a name behind the address", "only tls:// and https:// have a certificate that it could be in")
	case name == "":
		return "", problem("no name behind the #", "leave out the #: then the certificate must be for the address")
	case isAddress(name):
		return "", problem("an address behind the #", "leave it out: then the certificate must be for the address that is asked")
	}
	return hostName(name), hostNameProblem(name)
}

// parseURLPath reads the path of a URL, with its first slash and without it.
func parseURLPath(path, tail string) (string, *Problem) {
	odd := func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", c) }
	_, err := url.PathUnescape(path)
	switch {
	case strings.ContainsAny(tail, "?{"):
		return "", problem("more than a path", "leave out what begins with ? or {: forward[].https.method says how is asked")
	case err != nil, strings.ContainsFunc(path, odd):
		return "", problem("a path with a character that no URL has", "write it as % and two hexadecimal digits")
	case len(path) > maxURLPath:
		return "", problem(fmt.Sprintf("a path longer than %d bytes", maxURLPath), "")
	case path == "":
		return dnsQuery, nil
	}
	return path, nil
}

// maxURLPath leaves room for a query in the line of a GET request.
const maxURLPath = 255

// parseNamed reads the host name and port of an HTTPS target without an address of its own.
func parseNamed(t Target, text string) (Target, *Problem) {
	host, number, hasPort := strings.Cut(text, ":")
	port := uint64(httpsPort)
	if hasPort {
		var err error
		if port, err = strconv.ParseUint(number, 10, 16); err != nil || port == 0 || !isDigits(number) {
			return Target{}, problem("not a port behind the host", portHint)
		}
	}
	if p := hostNameProblem(host); p != nil {
		return Target{}, p
	}
	if t.Name != "" {
		return Target{}, problem("two names", "write https://name, or https:// and an address with #name behind it")
	}
	t.Name, t.Addr = hostName(host), netip.AddrPortFrom(netip.Addr{}, uint16(port))
	return t, nil
}

// parseProbeServer reads an address with or without a port, with udp:// or tcp:// before it or neither. The empty string
// is the program itself.
func parseProbeServer(text string) (string, *Problem) {
	if text == "" {
		return "", nil
	}
	t, p := parseTarget(text)
	switch {
	case p != nil:
		return "", p
	case t.Kind == ResolvConf:
		return "", problem("a path", "write the address of a server")
	case t.Kind != Plain && t.Kind != TCP:
		return "", problem("not asked over UDP or TCP", "a probe asks as a client would: write its address alone, or tcp:// before it")
	case strings.ContainsAny(t.Addr.Addr().Zone(), "/#"):
		return "", problem("an address with an odd zone", "")
	case t.Kind == TCP:
		return "tcp://" + t.Addr.String(), nil
	}
	return t.Addr.String(), nil
}
