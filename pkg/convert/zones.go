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
	transport string // dns by default
	host      string // a zone, or a prefix for reverse zones
	port      string // empty: not set
}

// parseAddress parses a key: a zone or a prefix, with an optional transport and port.
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

// zones returns the zones of a host: itself, or the reverse zones of a prefix.
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

// reverseZones returns the zones with exactly the reverse names of a prefix.
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

// reverseLabels returns the numbers in the labels of a reverse name, the most significant first.
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

// isReverse reports whether a zone is a reverse zone.
func isReverse(zone string) bool { return below(zone, "in-addr.arpa.") || below(zone, "ip6.arpa.") }

// below reports whether name is zone or below it. Both are absolute and in lower case.
func below(name, zone string) bool {
	return zone == "." || name == zone || strings.HasSuffix(name, "."+zone)
}
