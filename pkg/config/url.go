// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// parseURL reads what stands behind a scheme: an address or, with HTTPS, a host name, then a port, a path and a
// name, as far as the scheme has use for them. isURL reports whether the scheme was written.
func parseURL(s scheme, text string, isURL bool) (Target, flaw) {
	t := Target{Kind: s.kind}
	rest, name, named := strings.Cut(text, "#")
	if named {
		var f flaw
		if t.Name, f = parseFragment(s, name); f.what != "" {
			return Target{}, f
		}
	}
	if s.kind == HTTPS {
		host, path, _ := strings.Cut(rest, "/")
		var f flaw
		if t.Path, f = parseURLPath(strings.TrimPrefix(rest, host), path); f.what != "" {
			return Target{}, f
		}
		rest = host
	}
	var err error
	t.Addr, err = parseEndpoint(rest, s.port)
	switch {
	case err == nil:
		return t, serverFlaw(t.Addr)
	case s.kind == HTTPS:
		return parseNamed(t, rest)
	}
	f := notATarget(rest, isURL)
	if host, _, _ := strings.Cut(rest, ":"); s.kind == TLS && !named && hostFlaw(host).what == "" {
		f.hint = "write its address with the name behind it, like tls://192.0.2.1#" + hostName(host)
	}
	return Target{}, f
}

// parseFragment reads the name behind an address.
func parseFragment(s scheme, name string) (string, flaw) {
	withName := s.kind == TLS || s.kind == HTTPS
	switch {
	case !withName && isDigits(name):
		return "", flaw{what: "a # behind the address", hint: "write the port behind a colon"}
	case !withName:
		return "", flaw{what: "a name behind the address", hint: "only tls:// and https:// have a certificate that it could be in"}
	case name == "":
		return "", flaw{what: "no name behind the #", hint: "leave out the #: then the certificate must be for the address"}
	case isAddress(name):
		return "", flaw{what: "an address behind the #", hint: "leave it out: then the certificate must be for the address that is asked"}
	}
	f := hostFlaw(name)
	return hostName(name), f
}

// parseURLPath reads the path of a URL, with its first slash and without it.
func parseURLPath(path, tail string) (string, flaw) {
	odd := func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", c) }
	_, err := url.PathUnescape(path)
	switch {
	case strings.ContainsAny(tail, "?{"):
		return "", flaw{what: "more than a path", hint: "leave out what begins with ? or {: forward[].https.method says how is asked"}
	case err != nil, strings.ContainsFunc(path, odd):
		return "", flaw{what: "a path with a character that no URL has", hint: "write it as % and two hexadecimal digits"}
	case len(path) > maxURLPath:
		return "", flaw{what: fmt.Sprintf("a path longer than %d bytes", maxURLPath)}
	case path == "":
		return dnsQuery, flaw{}
	}
	return path, flaw{}
}

// maxURLPath leaves room for a query in the line of a GET request.
const maxURLPath = 255

// parseNamed reads the host name and port of an HTTPS target without an address of its own.
func parseNamed(t Target, text string) (Target, flaw) {
	host, number, hasPort := strings.Cut(text, ":")
	port := uint64(httpsPort)
	if hasPort {
		var err error
		if port, err = strconv.ParseUint(number, 10, 16); err != nil || port == 0 || !isDigits(number) {
			return Target{}, flaw{what: "not a port behind the host", hint: portHint}
		}
	}
	if f := hostFlaw(host); f.what != "" {
		return Target{}, f
	}
	if t.Name != "" {
		return Target{}, flaw{what: "two names", hint: "write https://name, or https:// and an address with #name behind it"}
	}
	t.Name, t.Addr = hostName(host), netip.AddrPortFrom(netip.Addr{}, uint16(port))
	return t, flaw{}
}

// hostName is a name as certificates are compared with it.
func hostName(text string) string { return strings.ToLower(strings.TrimSuffix(text, ".")) }

// hostName returns the value of n when it is the name of a host, and reports anything else.
func (n node) hostName() (string, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return "", false
	}
	f := hostFlaw(text)
	if f.what != "" {
		f.what = "not the name of a host"
	}
	return hostName(text), n.rejectFlaw(f)
}

// hostFlaw says what keeps a text from being a host name that a certificate can be for.
func hostFlaw(text string) flaw {
	const what = "not an address or the name of a host"
	name := hostName(text)
	if len(name)+2 > maxName {
		return flaw{what: "a name longer than 255 bytes"}
	}
	for _, c := range name {
		switch {
		case c >= 0x80:
			return flaw{what: what, hint: "write an international name in its xn-- form"}
		case !strings.ContainsRune(".-_", c) && !isLetterOrDigit(c):
			return flaw{what: what, hint: fmt.Sprintf("no name of a host holds %q", c)}
		}
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel || strings.HasPrefix(label, "-") {
			return flaw{what: what}
		}
	}
	if isDigits(name[strings.LastIndexByte(name, '.')+1:]) {
		return flaw{what: what} // programs read 10.0.0 as an address
	}
	return flaw{}
}
