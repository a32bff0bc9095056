// SPDX-License-Identifier: Apache-2.0

package nodeservers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// maxServers bounds the servers of each IP family. The C library asks three.
const maxServers = 3

// The files of systemd.
const (
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
	networkdLinks     = "/run/systemd/netif/links"   // of links that systemd-networkd configures
	resolvedLinks     = "/run/systemd/resolve/netif" // of links that others configure by D-Bus, such as NetworkManager
)

// Config says where to read.
type Config struct {
	ResolvConf        string                // the node's resolv.conf(5)
	SystemdResolvConf string                // read instead of one that names only the stub of systemd-resolved; empty: systemd's path
	LinkFolders       []string              // each has a file for each link; nil: those of systemd. They need not exist
	Own               func(netip.Addr) bool // reports whether it is an address of the agent, or of the cluster's DNS; required
	Log               *slog.Logger          // required
}

// A List is what a node asks.
type List struct {
	Servers []netip.Addr // in the order of the file, at most three of each family
	Left    []Left       // the other servers
}

// A Left is a server that is left alone.
type Left struct {
	Server string // as the file has it, or with its port
	Reason string
}

func (c *Config) withDefaults() Config {
	d := *c
	d.SystemdResolvConf = cmp.Or(d.SystemdResolvConf, systemdResolvConf)
	if d.LinkFolders == nil {
		d.LinkFolders = []string{networkdLinks, resolvedLinks}
	}
	return d
}

// Read reads the files. An error means that the resolv.conf cannot be read; files of links need not exist.
//
// A server that a link has for its own domains is left alone: systemd-resolved asks it for names that the others do not have. If links
// have different servers, only those of links without domains, which get all other names, are not left.
func Read(c Config) (List, error) {
	c = c.withDefaults()
	found, excluded, err := upstream.ReadResolvConf(c.ResolvConf, upstream.Config{
		SystemdResolvConf: c.SystemdResolvConf, Self: func(netip.AddrPort) bool { return false },
	})
	if err != nil {
		return List{}, fmt.Errorf("reading the node's servers: %w", err)
	}
	list := List{}
	for _, e := range excluded {
		list.Left = append(list.Left, Left(e))
	}
	links := readLinks(c.LinkFolders)
	servers := make([]netip.Addr, len(found))
	for i, s := range found {
		servers[i] = s.Addr()
	}
	for _, a := range servers {
		reason := c.reason(a)
		if reason == "" && links.splits(a, servers) {
			reason = "asked only for the names of some links"
		}
		if reason == "" && list.count(a.Is6()) == maxServers {
			reason = "too many"
		}
		if reason != "" {
			list.Left = append(list.Left, Left{a.String(), reason})
			continue
		}
		list.Servers = append(list.Servers, a)
	}
	return list, nil
}

// count returns the number of servers of a family.
func (l *List) count(v6 bool) (n int) {
	for _, a := range l.Servers {
		if a.Is6() == v6 {
			n++
		}
	}
	return n
}

// reason returns why a server is left alone whatever its names are, empty for none.
func (c *Config) reason(a netip.Addr) string {
	switch {
	case c.Own(a):
		return "an address of the agent or of the cluster's DNS"
	case a.IsLoopback():
		return "a server on this node, which asks others"
	case a.IsUnspecified(): // the C library asks this host
		return "this node"
	case a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast():
		return "an address that is unique on its link only"
	case a.IsMulticast():
		return "a multicast address"
	}
	return ""
}

// Follow calls changed with what Read returns, at once and whenever it has changed, until ctx ends. While the files cannot be read, or
// name no server, the last list stays. Calls do not overlap.
func Follow(ctx context.Context, c Config, changed func(List)) {
	c = c.withDefaults()
	var last List
	known, failing := false, false
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{c.ResolvConf, c.SystemdResolvConf}, Folder: slices.Concat(c.LinkFolders, []string{""})[0], Log: c.Log,
		Check: func(bool) time.Duration {
			list, err := Read(c)
			if err != nil && !failing {
				c.Log.WarnContext(ctx, "node's servers unreadable, keeping the last ones", "err", err)
			}
			failing = err != nil
			if err != nil || len(list.Servers) == 0 && len(list.Left) == 0 && known || known && list.equal(&last) {
				return 0
			}
			last, known = list, true
			changed(list)
			return 0
		},
		OnPanic: func(panicked any) { panics.Log(ctx, c.Log, "following the node's servers", panicked) },
	})
}

func (l *List) equal(o *List) bool {
	return slices.Equal(l.Servers, o.Servers) && slices.Equal(l.Left, o.Left)
}
