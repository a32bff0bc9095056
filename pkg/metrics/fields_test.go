// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/zone"
)

// TestEveryFieldIsASeries changes one number of the Stats after the other: each must show in the scrape, so that no
// package counts in vain.
func TestEveryFieldIsASeries(t *testing.T) {
	t.Parallel()
	base := gather(t, distinct())
	try := func(name string, cfg metrics.Config) {
		if cmp.Equal(render(base), render(gather(t, cfg))) {
			t.Errorf("%s: no series changes with it", name)
		}
	}
	unready := distinct()
	unready.Ready = func() error { return errors.New("starting") }
	try("Ready", unready)
	for name, change := range changes(distinct().Resolve()) {
		cfg := distinct()
		cfg.Resolve = func() resolve.Stats { return change }
		try("resolve.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Cache()) {
		cfg := distinct()
		cfg.Cache = func() cache.Stats { return change }
		try("cache.Stats."+name, cfg)
	}
	for name, change := range changes(*distinct().Snapshot()) {
		if name == "LastError" || name == "Loaded" { // a text for /status; below
			continue
		}
		cfg := distinct()
		cfg.Snapshot = func() *snapshot.Stats { return &change }
		try("snapshot.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Snapshot().Loaded) {
		if name == "Reason" { // a text for /status
			continue
		}
		kept := *distinct().Snapshot()
		kept.Loaded = change
		cfg := distinct()
		cfg.Snapshot = func() *snapshot.Stats { return &kept }
		try("snapshot.Loaded."+name, cfg)
	}
	for name, change := range changes(distinct().Memory()) {
		cfg := distinct()
		cfg.Memory = func() metrics.Memory { return change }
		try("Memory."+name, cfg)
	}
	restored := distinct()
	restored.Cluster = func() metrics.Cluster {
		held := *distinct().Cluster().Zone
		held.Kinds[zone.Slices].Restored = true
		return metrics.Cluster{Zone: &held, Source: distinct().Cluster().Source}
	}
	try("zone.KindStats.Restored", restored)
	for name, change := range changes(distinct().UDP()[0]) {
		cfg := distinct()
		cfg.UDP = func() []server.UDPStats { return []server.UDPStats{change} }
		try("server.UDPStats."+name, cfg)
	}
	for name, change := range changes(distinct().TCP()[0]) {
		cfg := distinct()
		cfg.TCP = func() []server.TCPStats { return []server.TCPStats{change} }
		try("server.TCPStats."+name, cfg)
	}
	for name, change := range changes(distinct().Admin()) {
		cfg := distinct()
		cfg.Admin = func() admin.Stats { return change }
		try("admin.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Upstream()[1].Stats.Servers[0]) {
		switch name {
		case "LastResort", "Far": // only servers of a service are
			continue
		case "Name", "Limitations", "LastError": // open sets: they are in /status
			continue
		}
		cfg := distinct()
		routes := cfg.Upstream()
		routes[1].Stats.Servers = []upstream.ServerStats{change}
		cfg.Upstream = func() []metrics.Route { return routes }
		try("upstream.ServerStats."+name, cfg)
	}
	for name, change := range changes(*distinct().Cluster().Zone) {
		cfg := distinct()
		c := cfg.Cluster()
		c.Zone = &change
		cfg.Cluster = func() metrics.Cluster { return c }
		try("zone.Stats."+name, cfg)
	}
	for name, change := range sourceChanges() {
		cfg := distinct()
		c := cfg.Cluster()
		c.Source = &change
		cfg.Cluster = func() metrics.Cluster { return c }
		try("watch."+name, cfg)
	}
	for name, change := range nodeChanges() {
		cfg := distinct()
		cfg.Node = func() metrics.Node { return change }
		try("Node."+name, cfg)
	}
	for name, change := range changes(distinct().Probes()[0].Stats) {
		if name == "Last" || name == "Row" || name == "LastError" { // for /status
			continue
		}
		cfg := distinct()
		cfg.Probes = func() []metrics.Probe { return []metrics.Probe{{Label: "cluster", Stats: change}, {Label: "outside"}} }
		try("probe.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Source()) {
		cfg := distinct()
		cfg.Source = func() source.Stats { return change }
		try("source.Stats."+name, cfg)
	}
	for name, change := range changesBut(*distinct().Static(), "Files") { // below
		cfg := distinct()
		cfg.Static = func() *static.Stats { return &change }
		try("static.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Static().Files[0]) {
		cfg := distinct()
		held := *cfg.Static()
		held.Files[0] = change
		cfg.Static = func() *static.Stats { return &held }
		if name == "Err" { // of another kind than the rest
			held.Files[0].Err = errors.New("lost")
		}
		try("static.FileStats."+name, cfg)
	}
	for name, change := range changesBut(*distinct().Handover(), "From", "Why", "To", "GivenAt", "LastError") { // for /status
		cfg := distinct()
		cfg.Handover = func() *handover.Stats { return &change }
		try("handover.Stats."+name, cfg)
	}
	for name, change := range changes(distinct().Config()) {
		cfg := distinct()
		cfg.Config = func() metrics.ConfigState { return change }
		try("ConfigState."+name, cfg)
	}
}

// changes is, for each field of v, v with another value there.
func changes[T any](v T) map[string]T {
	list := map[string]T{}
	for i := range reflect.TypeFor[T]().NumField() {
		other := v
		field := reflect.ValueOf(&other).Elem().Field(i)
		switch field.Interface().(type) {
		case string:
			field.SetString("tls")
		case bool:
			field.SetBool(!field.Bool())
		case time.Time:
			field.Set(reflect.ValueOf(time.Unix(1, 0)))
		case []string, []netip.Addr, []netip.AddrPort, map[netip.Addr]string, map[netip.Addr]bool:
			field.SetZero()
		case netip.AddrPort:
			field.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.99:53")))
		default:
			last := int64(90000)
			number(field, &last)
		}
		list[reflect.TypeFor[T]().Field(i).Name] = other
	}
	return list
}
