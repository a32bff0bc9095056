// SPDX-License-Identifier: Apache-2.0

package nodeservers

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Bounds of the files of links. A node has as many links as pods, and few of them have servers.
const (
	maxLinks    = 1024
	maxLinkFile = 64 << 10 // bytes
)

// A link is what systemd knows of a link that has servers.
type link struct {
	servers []netip.Addr // those at port 53, sorted
	domains bool         // it has domains of its own
	all     bool         // it gets the names of no link, in systemd's words: it is a default route
}

type links []link

// readLinks reads the files of the folders. What cannot be read is left out: then all servers count as equal.
func readLinks(folders []string) (list links) {
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, entry := range entries[:min(len(entries), maxLinks)] {
			text, err := filewatch.ReadFile(filepath.Join(folder, entry.Name()), maxLinkFile)
			if l := parseLink(string(text)); err == nil && len(l.servers) > 0 {
				list = append(list, l)
			}
		}
	}
	return list
}

// parseLink parses the file of a link: of systemd-networkd (DNS, DNS_DEFAULT_ROUTE, DOMAINS, ROUTE_DOMAINS), or of systemd-resolved
// (SERVERS, DEFAULT_ROUTE, and DOMAINS, where ~ marks those for routing only). systemd says that these files are private. A line that is
// not understood is ignored.
func parseLink(text string) link {
	l := link{all: true}
	routeOnly, anyName, explicit := false, false, ""
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "DNS", "SERVERS":
			for word := range strings.FieldsSeq(value) {
				if a, ok := parseServer(word); ok {
					l.servers = append(l.servers, a)
				}
			}
		case "DNS_DEFAULT_ROUTE", "DEFAULT_ROUTE":
			explicit = value
		case "DOMAINS", "ROUTE_DOMAINS":
			for word := range strings.FieldsSeq(value) {
				name, marked := strings.CutPrefix(word, "~")
				if name == "." {
					anyName = true
					continue
				}
				l.domains = true
				routeOnly = routeOnly || marked || key == "ROUTE_DOMAINS"
			}
		}
	}
	slices.SortFunc(l.servers, netip.Addr.Compare)
	l.servers = slices.Compact(l.servers)
	switch explicit {
	case "yes", "no":
		l.all = explicit == "yes"
	default:
		l.all = anyName || !routeOnly
	}
	return l
}

// parseServer parses ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT, with an interface behind % at the end or before ], and a name behind #. It
// returns false for what is not at port 53.
func parseServer(word string) (netip.Addr, bool) {
	word, _, _ = strings.Cut(word, "#")
	if before, zone, ok := strings.Cut(word, "%"); ok {
		word = before
		if _, port, bracket := strings.Cut(zone, "]"); bracket {
			word += "]" + port
		}
	}
	if to, err := netip.ParseAddrPort(word); err == nil {
		return to.Addr().Unmap(), to.Port() == 53
	}
	a, err := netip.ParseAddr(word)
	return a.Unmap(), err == nil
}

// splits reports whether the server a is asked for other names than another of the servers, which are all of the node.
func (l links) splits(a netip.Addr, servers []netip.Addr) bool {
	equal := !slices.ContainsFunc(servers, func(s netip.Addr) bool { // a server of no link is asked for all names
		return !slices.ContainsFunc(l, func(k link) bool { return slices.Contains(k.servers, s) })
	})
	for i := range l {
		equal = equal && slices.Equal(l[i].servers, l[0].servers)
	}
	return slices.ContainsFunc(l, func(k link) bool {
		return slices.Contains(k.servers, a) && (!k.all || k.domains && !equal)
	})
}
