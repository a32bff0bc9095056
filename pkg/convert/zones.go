// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// address is one key of a server block.
type address struct {
	transport string // dns unless another one was written
	host      string // a zone, or a prefix that stands for reverse zones
	port      string // empty: none was written
}

// parseAddress reads a key: a zone or a prefix, with a transport before it and a port behind it or neither.
func parseAddress(key string) address {
	a := address{transport: "dns", host: key}
	if transport, rest, found := strings.Cut(key, "://"); found {
		a.transport, a.host = strings.ToLower(transport), rest
	}
	if host, port, err := net.SplitHostPort(a.host); err == nil {
		a.host, a.port = host, port
	}
	if a.host == "" {
		a.host = "."
	}
	return a
}

// zones are the zones that a host stands for: itself, or those of the reverse names of a prefix.
func zones(host string) ([]string, error) {
	if p, err := netip.ParsePrefix(host); err == nil {
		return reverseZones(p.Masked()), nil
	}
	zone, err := config.ParseZone(host)
	if err != nil {
		return nil, err
	}
	return []string{zone}, nil
}

// reverseZones are the zones that hold the reverse names of a prefix and of no other address.
func reverseZones(p netip.Prefix) []string {
	step, suffix := 8, "in-addr.arpa."
	if p.Addr().Is6() {
		step, suffix = 4, "ip6.arpa."
	}
	whole := (p.Bits() + step - 1) / step // labels of each zone
	digits := reverseLabels(p.Addr())
	count := 1 << (whole*step - p.Bits())
	list := make([]string, 0, count)
	for i := range count {
		zone := suffix
		for j, digit := range digits[:whole] {
			if j == whole-1 {
				digit += i
			}
			if p.Addr().Is6() {
				zone = fmt.Sprintf("%x.", digit) + zone
			} else {
				zone = fmt.Sprintf("%d.", digit) + zone
			}
		}
		list = append(list, zone)
	}
	return list
}

// reverseLabels are the numbers that the labels of a reverse name stand for, the most significant one first.
func reverseLabels(a netip.Addr) []int {
	var list []int
	for _, b := range a.AsSlice() {
		if a.Is6() {
			list = append(list, int(b>>4), int(b&15))
		} else {
			list = append(list, int(b))
		}
	}
	return list
}

// isReverse reports whether the names of a zone are those of addresses.
func isReverse(zone string) bool { return below(zone, "in-addr.arpa.") || below(zone, "ip6.arpa.") }

// below reports whether a name is a zone or below it. Both are absolute and in lower case.
func below(name, zone string) bool {
	return zone == "." || name == zone || strings.HasSuffix(name, "."+zone)
}
