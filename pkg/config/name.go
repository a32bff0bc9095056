// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/labels"
)

// Sizes of names, RFC 1035 section 2.3.4.
const (
	maxLabel = 63
	maxName  = 255 // with the length byte of each label and the root's
)

// maxDomain leaves room for the longest name that a zone has by itself, hostmaster.dns in an external zone.
const maxDomain = maxName - len("hostmaster.dns") - 1

// parseDomain reads a domain name that is not the root.
func parseDomain(text string) (string, *Problem) {
	name, p := parseZone(text)
	if name == "." || isRoot(text) {
		p = problem("not the name of a domain", "write a domain, like cluster.local")
	}
	if len(name)+1 > maxDomain {
		p = problem(fmt.Sprintf("longer than %d bytes, which leaves no room for names in it", maxDomain), "")
	}
	return name, p
}

// parseClusterSet is parseDomain for a domain that may be missing.
func parseClusterSet(text string) (string, *Problem) {
	switch text {
	case "":
		return "", nil
	case ".":
		return "", problem("not the name of a domain", "write the domain of the cluster set, like clusterset.local")
	}
	return parseDomain(text)
}

// parseZone returns the name in lower case (RFC 4343) with a dot at its end.
func parseZone(text string) (string, *Problem) {
	name := strings.TrimSuffix(text, ".")
	switch {
	case text == ".":
		return text, nil
	case len(name)+2 > maxName:
		return "", problem(fmt.Sprintf("not a zone: longer than %d bytes", maxName), "")
	case isRoot(text):
		return "", problem("not a zone", `write "." for the root`)
	case strings.HasPrefix(text, "*."):
		return "", problem("not a zone", "a zone holds all names below it: write "+strconv.Quote(text[2:]))
	case strings.HasPrefix(text, ".") && text[1] != '.':
		return "", problem("not a zone: an empty label", "write "+strconv.Quote(text[1:]))
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "", problem("not a zone: an empty label", "write one dot between labels")
		case len(label) > maxLabel:
			return "", problem(fmt.Sprintf("not a zone: a label longer than %d bytes", maxLabel), "")
		}
	}
	for _, c := range name {
		if c >= 0x80 {
			return "", problem(fmt.Sprintf("not a zone: holds %q", c), "write an international name in its xn-- form")
		}
		if !strings.ContainsRune(".-_/", c) && !isLetterOrDigit(c) {
			return "", problem(fmt.Sprintf("not a zone: holds %q", c), "letters, digits, -, _ and / make a label")
		}
	}
	return strings.ToLower(name) + ".", nil
}

// isRoot reports whether a text is empty, or has only dots and stars but is not ".", the name of the root.
func isRoot(text string) bool { return text != "." && strings.Trim(text, ".*") == "" }

// parseName returns the name in lower case (RFC 4343) with a dot at its end. It is not the root.
func parseName(text string) (string, *Problem) {
	const what = "not a name"
	switch {
	case strings.Trim(text, ".") == "":
		return "", problem(what, "")
	case strings.Contains(text, "*"):
		return "", problem(what+": holds '*'", "answer the names below a zone by one of the templates")
	}
	name, p := parseZone(text)
	if p != nil {
		p.What = strings.Replace(p.What, "not a zone", what, 1)
	}
	return name, p
}

// parseProbeName reads the name that a probe queries. The root is allowed: every resolver can answer for its servers.
func parseProbeName(text string) (string, *Problem) {
	if text == "." {
		return text, nil
	}
	return parseName(text)
}

// hostName returns a name in the form for the comparison with certificates: lower case, without a final dot.
func hostName(text string) string { return strings.ToLower(strings.TrimSuffix(text, ".")) }

// parseHost reads the name of a host.
func parseHost(text string) (string, *Problem) {
	p := hostNameProblem(text)
	if p != nil {
		p.What = "not the name of a host"
	}
	return hostName(text), p
}

// hostNameProblem says what keeps a text from being a host name that a certificate can be for.
func hostNameProblem(text string) *Problem {
	const what = "not an address or the name of a host"
	name := hostName(text)
	if len(name)+2 > maxName {
		return problem("a name longer than 255 bytes", "")
	}
	for _, c := range name {
		switch {
		case c >= 0x80:
			return problem(what, "write an international name in its xn-- form")
		case !strings.ContainsRune(".-_", c) && !isLetterOrDigit(c):
			return problem(what, fmt.Sprintf("no name of a host holds %q", c))
		}
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel || strings.HasPrefix(label, "-") {
			return problem(what, "")
		}
	}
	if isDigits(name[strings.LastIndexByte(name, '.')+1:]) {
		return problem(what, "") // programs read 10.0.0 as an address
	}
	return nil
}

// isLabel reports whether text is a DNS label as the API takes it for a name: RFC 1123, in lower case.
func isLabel(text string) bool {
	return isBounded(text) && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// isBounded reports whether text is as long as a label may be, with a letter or a digit at both ends.
func isBounded(text string) bool {
	return text != "" && len(text) <= maxLabel &&
		isLetterOrDigit(rune(text[0])) && isLetterOrDigit(rune(text[len(text)-1]))
}

// maxProbeLabel bounds the label of a probe, which is in each of its series.
const maxProbeLabel = 32

func parseProbeLabel(text string) (string, *Problem) {
	if len(text) > maxProbeLabel || !isLabel(text) {
		return "", problem("not a label", fmt.Sprintf("lower-case letters, digits and -, a letter or a digit at both ends, %d bytes at most", maxProbeLabel))
	}
	return text, nil
}

// parseNamespace reads the name of a namespace.
func parseNamespace(text string) (string, *Problem) {
	lower, p := strings.ToLower(text), problem("not the name of a namespace", "")
	switch {
	case isLabel(text):
		return text, nil
	case text == "*", text == "":
		p.Hint = "leave the list empty for all namespaces"
	case isLabel(lower):
		p.Hint = "write " + lower
	default:
		p.Hint = "lower-case letters, digits and -, a letter or a digit at both ends, 63 bytes at most"
	}
	return "", p
}

// isOddInLabel reports whether a character is invalid in the value of a label, and in the name of a link.
func isOddInLabel(c rune) bool { return !strings.ContainsRune("-_.", c) && !isLetterOrDigit(c) }

// parseTopologyZone reads the value of a node's label topology.kubernetes.io/zone. The empty string is valid as well.
func parseTopologyZone(text string) (string, *Problem) {
	if text != "" && (!isBounded(text) || strings.ContainsFunc(text, isOddInLabel)) {
		return "", problem("not a topology zone", "letters, digits, -, _ and ., a letter or a digit at both ends, 63 bytes at most")
	}
	return text, nil
}

// parseSelector reads a label selector with the code that the API server reads it
// with: a grammar of our own could accept what the API server refuses in every request.
func parseSelector(text string) (string, *Problem) {
	if _, err := labels.Parse(text); err != nil {
		return "", problem("not a label selector"+selectorDetail(err), "write it like app=web, tier!=cache or env in (a, b)")
	}
	return text, nil
}

// selectorDetail returns the detail of an error of labels.Parse, without its prefix and without the expressions and examples
// at its end. The detail repeats the text, so it is empty if it is long or not printable.
func selectorDetail(err error) string {
	what := strings.TrimPrefix(err.Error(), "unable to parse requirement: ")
	if _, value, found := strings.Cut(what, "Invalid value: "); found {
		what = value
	}
	for _, end := range []string{" (e.g.", ", regex used"} {
		what, _, _ = strings.Cut(what, end)
	}
	if len(what) > 256 || strings.ContainsFunc(what, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return ""
	}
	return ": " + what
}

// parseLink reads the name of a link that the agent may make. It is stricter than the kernel, which takes every byte but
// the slash, the colon and white space: other programs read some of them as patterns.
func parseLink(text string) (string, *Problem) {
	const most = 15 // IFNAMSIZ without the zero byte at its end
	switch {
	case len(text) > most:
		return "", problem("longer than 15 bytes, the most a link's name can have", "")
	case text == "lo":
		return "", problem("the name of the loopback link", "write kind: lo to have the addresses there")
	case text == "all", text == "default": // both have another meaning in /proc/sys/net/ipv4/conf
		return "", problem("stands for other links", "choose another name")
	case strings.Trim(text, ".") == "", strings.HasPrefix(text, "-"), strings.ContainsFunc(text, isOddInLabel):
		return "", problem("not the name of a link", "letters, digits, -, _ and ., 1 to 15 bytes")
	}
	return text, nil
}

// parseType reads the type of records that can be asked for.
func parseType(text string) (uint16, *Problem) {
	word := strings.ToUpper(text)
	t, known := dns.StringToType[word]
	if number, found := strings.CutPrefix(word, "TYPE"); !known && found && isDigits(number) { // RFC 3597
		value, err := strconv.ParseUint(number, 10, 16)
		t, known = uint16(value), err == nil
	}
	if !known || t == 0 || t == dns.TypeOPT || t >= 128 && t < 256 || t == dns.TypeReserved { // RFC 6895 section 3.1
		return 0, problem("not the type of a record", "write it like A, AAAA or TYPE65")
	}
	return t, nil
}

// spellType is the inverse of parseType.
func spellType(t uint16) string { return dns.Type(t).String() }

// parseLocation reads the path of a file or a folder. The empty string is none.
func parseLocation(text string) (string, *Problem) {
	switch {
	case strings.ContainsRune(text, 0):
		return "", problem("not a path", "")
	case text == "":
		return "", nil
	}
	return filepath.Clean(text), nil
}

// parseFileName reads the path of a file.
func parseFileName(text string) (string, *Problem) {
	if text == "" || strings.ContainsRune(text, 0) || strings.HasSuffix(text, "/") {
		return "", problem("not the path of a file", "")
	}
	return filepath.Clean(text), nil
}

// parseCollector reads where dnstap messages go: unix:// and a path, tcp:// and an address, or nothing.
func parseCollector(text string) (string, *Problem) {
	network, to, _ := strings.Cut(text, "://")
	switch {
	case text == "":
		return "", nil
	case network == "unix" && to != "":
		path, p := parseSocket(to)
		return "unix://" + path, p
	case network == "tcp":
		if addr, err := netip.ParseAddrPort(to); err == nil && addr.Port() != 0 {
			return "tcp://" + addr.String(), nil
		}
	}
	return "", problem("not a dnstap collector", "write it like unix:///run/dnstap.sock or tcp://192.0.2.1:6000")
}

// parseSocket reads the path of a unix socket. It must be absolute, because other programs must have it as it is written. The
// empty string is none.
func parseSocket(text string) (string, *Problem) {
	const most = 107 // unix(7) has 108 bytes for it with a zero at its end
	const hint = "write it like /run/node-cache/node-cache.sock"
	switch path := filepath.Clean(text); {
	case text == "":
		return "", nil
	case strings.ContainsRune(text, 0), strings.HasSuffix(text, "/"):
		return "", problem("not the path of a socket", hint)
	case !filepath.IsAbs(text):
		return "", problem("not an absolute path", hint)
	case len(path) > most:
		return "", problem(fmt.Sprintf("longer than %d bytes, which the path of a socket cannot be", most), "")
	default:
		return path, nil
	}
}

func isLetterOrDigit(c rune) bool {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}

// parsePart reads the part of a name that a kind of rewrite replaces, or puts in its place. It returns the part in lower case
// and without a dot where the name ends.
func parsePart(kind, text string, mayBeEmpty bool) (string, *Problem) {
	part := text
	if kind != RewritePrefix {
		part = strings.TrimSuffix(text, ".")
	}
	var p *Problem
	switch {
	case kind == RewriteExact:
		_, p = parseName(text)
	case part == "" && text != "":
		p = problem("the end of every name", "")
	case part == "" && mayBeEmpty:
	case part == "":
		p = problem("the part of every name", "write the beginning or the end of those that are meant")
	case kind == RewritePrefix && part == ".":
		p = problem("the beginning of no name", "")
	default:
		p = partProblem(kind, part)
	}
	return strings.ToLower(part), p
}

// partProblem says what keeps a text from being the beginning or the end of a name. With a letter added, the text has to be a name.
func partProblem(kind, part string) *Problem {
	if strings.Trim(part, ".") == "" {
		return problem("not a part of a name: an empty label", "write one dot between labels")
	}
	whole := part + "x"
	if kind == RewriteSuffix || strings.HasSuffix(part, "-") {
		whole = part
	}
	if kind == RewriteSuffix && strings.HasPrefix(part, ".") {
		whole = "x" + part
	}
	_, p := parseName(whole)
	if p != nil {
		p.What = strings.Replace(p.What, "not a name", "not a part of a name", 1)
	}
	return p
}

// ServiceName names a Service. Both parts are DNS labels in lower case (RFC 1123), or both are empty.
type ServiceName struct{ Namespace, Name string }

// String returns "namespace/name", the empty string for the zero value.
func (s ServiceName) String() string {
	if s == (ServiceName{}) {
		return ""
	}
	return s.Namespace + "/" + s.Name
}

// parseService reads a namespace and a name. The empty string is the zero value.
func parseService(text string) (ServiceName, *Problem) {
	namespace, name, _ := strings.Cut(text, "/")
	switch {
	case text == "", isLabel(namespace) && isLabel(name):
		return ServiceName{Namespace: namespace, Name: name}, nil
	case isLabel(text):
		return ServiceName{}, problem("not a service with its namespace", "write it like kube-system/"+text)
	}
	return ServiceName{}, problem("not a service with its namespace", "write it like kube-system/kube-dns, in lower case")
}

// A Federation is an item of cluster.federations.
type Federation struct {
	Name   string // a label
	Domain string // lower-case and absolute
}

// String returns the item in its configured form.
func (f Federation) String() string { return f.Name + "=" + f.Domain }

func parseFederation(text string) (Federation, *Problem) {
	name, domain, _ := strings.Cut(text, "=")
	zone, p := parseDomain(domain)
	if p != nil || !isLabel(name) {
		return Federation{}, problem("not a federation and its domain", "write it like myfed=example.com")
	}
	return Federation{Name: name, Domain: zone}, nil
}

// ReverseZones returns the zones that hold exactly the reverse names of a masked prefix. It is one zone if
// the prefix ends at a byte of an IPv4 address or a nibble of an IPv6 address, else up to 128 or 8 (RFC 1035
// section 3.5, RFC 3596 section 2.5).
func ReverseZones(prefix netip.Prefix) (zones []string) {
	step := 8
	if prefix.Addr().Is6() {
		step = 4
	}
	parts := (prefix.Bits() + step - 1) / step
	end := parts * step // end of the last part, in bits
	for n := range 1 << (end - prefix.Bits()) {
		addr := prefix.Addr().AsSlice()
		addr[max(0, end-1)/8] += byte(n << ((8 - end%8) % 8))
		first, _ := netip.AddrFromSlice(addr)
		name, _ := dns.ReverseAddr(first.String()) // an address has a reverse name
		start, _ := dns.PrevLabel(name, parts+2)   // after in-addr.arpa or ip6.arpa
		zones = append(zones, name[start:])
	}
	return zones
}
