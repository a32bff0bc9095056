// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// priorityRaw is that of raw in iptables.
const priorityRaw = -300

// legacyNotracks reads the tables raw of iptables-legacy. It creates none.
func legacyNotracks(packets []packet) (list []Notrack, errs error) {
	for _, f := range families46() {
		names, err := LegacyTables(f.v6)
		if err != nil || !slices.Contains(names, "raw") {
			errs = errors.Join(errs, err)
			continue
		}
		entries, err := f.entries("raw")
		if err == nil {
			var chains rawChains
			chains, err = f.rawChains(entries)
			describe := func(chain string) string { return fmt.Sprintf("chain %s of %s", chain, f.program()) }
			b := rawBase{chains, preroutingChain, priorityRaw, yes, BackendIPTablesLegacy, describe}
			list = append(list, b.notracks(slices.DeleteFunc(slices.Clone(packets), func(p packet) bool { return p.v6() != f.v6 }))...)
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("reading table raw of %s: %w", f.program(), err))
		}
	}
	return list, errs
}

func (f family) program() string {
	if f.v6 {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

const preroutingChain = "PREROUTING"

// rawChains parses the entries of raw. PREROUTING is the first chain. That of OUTPUT follows in the same list, but no packet comes there,
// because the policy of PREROUTING is a rule too. Agents' chains are left out.
func (f family) rawChains(entries []byte) (rawChains, error) {
	chains, starts := rawChains{}, map[int]string{}
	name, offset, rules := preroutingChain, 0, 0
	for entry, target := range rulesOf(entries, f.targets) {
		offset += len(entry)
		if c := chainName(target); c != "" {
			name, starts[offset] = c, c
			continue
		}
		if rules++; rules > maxRawRules {
			return nil, errTooMany
		}
		if len(target) < targetData || strings.HasPrefix(name, ownChain) {
			continue
		}
		r := rawRule{matches: f.matchesOf(entry)}
		data := target[targetData:]
		switch kind := unix.ByteSliceToString(target[targetName : targetData-1]); {
		case kind == targetCT && isNotrack(data), kind == "NOTRACK":
			r.action = untrack
		case kind == "" && len(data) >= 4:
			r.action, r.target = f.standard(entry, int32(binary.NativeEndian.Uint32(data))) //nolint:gosec // it is one
		}
		chains[name] = append(chains[name], r)
	}
	for _, list := range chains {
		for i := range list {
			if at := list[i].target; at != "" {
				var to int
				_, _ = fmt.Sscan(at, &to)
				list[i].target = starts[to]
			}
		}
	}
	return chains, nil
}

// standard returns the action of a standard target, with the offset of the chain that it names.
func (f family) standard(entry []byte, value int32) (action, string) {
	const back = -5 // XT_RETURN
	flags, isGoto := 82, byte(2)
	if f.v6 {
		flags, isGoto = 131, 4
	}
	switch {
	case value == back:
		return comeBack, ""
	case value < 0:
		return stop, ""
	case entry[flags]&isGoto != 0:
		return goTo, fmt.Sprint(value)
	}
	return jumpTo, fmt.Sprint(value)
}

// The flags of an entry that negate a match, and those of the matches tcp and udp.
const (
	notIn    = 0x01
	notFrom  = 0x08
	notTo    = 0x10
	notProto = 0x40

	notFromPort = 1
	notToPort   = 2
)

// matchesOf returns the matches of an entry. What it does not know may match.
func (f family) matchesOf(entry []byte) func(p *packet) verdict {
	size, in, proto, inverted, matches := 4, 16, 80, 83, 112
	if f.v6 {
		size, in, proto, inverted, matches = 16, 64, 128, 132, 168
	}
	end := int(binary.NativeEndian.Uint16(entry[f.targets:]))
	not := func(flag byte) bool { return entry[inverted]&flag != 0 }
	field := func(i int) []byte { return entry[i*size : (i+1)*size] } // source, destination, and their masks
	return func(p *packet) verdict {
		v := min(isAddr(p.from, field(0), field(2)).not(not(notFrom)), isAddr(p.to, field(1), field(3)).not(not(notTo)))
		if number := binary.NativeEndian.Uint16(entry[proto:]); number != 0 {
			v = min(v, verdictOf(number == uint16(p.proto)).not(not(notProto)))
		}
		if mask := entry[in+2*unix.IFNAMSIZ : in+3*unix.IFNAMSIZ]; !isZero(mask) {
			v = min(v, isArrivingBy(entry[in:in+len(bytes.TrimRight(mask, "\x00"))]).not(not(notIn)))
		}
		for list := entry[min(matches, len(entry)):min(max(end, matches), len(entry))]; len(list) >= targetData; {
			length := int(binary.NativeEndian.Uint16(list))
			if length < targetData || length > len(list) {
				return min(v, maybe)
			}
			v = min(v, legacyMatch(p, unix.ByteSliceToString(list[targetName:targetData-1]), list[targetData:length]))
			list = list[length:]
		}
		return v
	}
}

// isArrivingBy returns whether packets of pods, or of the fallback, arrive by an interface: never by lo. A name without a zero byte is
// that of several.
func isArrivingBy(name []byte) verdict {
	if bytes.HasPrefix(name, []byte("lo\x00")) {
		return no
	}
	return maybe
}

// legacyMatch returns whether a match of iptables-legacy matches.
func legacyMatch(p *packet, name string, data []byte) verdict {
	ports := 9 // bytes with the flags
	switch name {
	case "comment":
		return yes
	case "udp":
	case "tcp":
		ports = 12
	default:
		return maybe
	}
	if len(data) < ports {
		return maybe
	}
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2*i:]) }
	inverted, flags := data[ports-1], yes
	if name == "tcp" && !bytes.Equal(data[8:10], []byte{0, 0}) { // an option, or flags
		flags = maybe
	}
	return min(flags, verdictOf(p.proto == map[string]byte{"udp": unix.IPPROTO_UDP, "tcp": unix.IPPROTO_TCP}[name]),
		inPorts(p.fromPort, port(0), port(1)).not(inverted&notFromPort != 0), inPorts(p.toPort, port(2), port(3)).not(inverted&notToPort != 0))
}
