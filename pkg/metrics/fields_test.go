// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/zone"
)

// TestEveryFieldIsASeries changes one number of the Stats after the other: each must show in the scrape, so that no
// package counts in vain.
func TestEveryFieldIsASeries(t *testing.T) {
	t.Parallel()
	base := gather(t, distinct())
	try := func(name string, sample metrics.Sample) {
		if cmp.Equal(render(base), render(gather(t, sample))) {
			t.Errorf("%s: no series changes with it", name)
		}
	}
	unready := distinct()
	unready.NotReady = errors.New("starting")
	try("NotReady", unready)
	for name, change := range changes(distinct().Resolve) {
		sample := distinct()
		sample.Resolve = change
		try("resolve.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Cache) {
		sample := distinct()
		sample.Cache = change
		try("cache.Stats."+name, sample)
	}
	for name, change := range changes(*distinct().Snapshot) {
		if name == "LastError" || name == "Loaded" { // a text for /status; below
			continue
		}
		sample := distinct()
		sample.Snapshot = &change
		try("snapshot.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Snapshot.Loaded) {
		if name == "Reason" { // a text for /status
			continue
		}
		kept := *distinct().Snapshot
		kept.Loaded = change
		sample := distinct()
		sample.Snapshot = &kept
		try("snapshot.Loaded."+name, sample)
	}
	for name, change := range changes(distinct().Memory) {
		sample := distinct()
		sample.Memory = change
		try("Memory."+name, sample)
	}
	restored := distinct()
	restored.Zone.Kinds[zone.Slices].Restored = true
	try("zone.KindStats.Restored", restored)
	for name, change := range changes(distinct().UDP[0]) {
		sample := distinct()
		sample.UDP = []server.UDPStats{change}
		try("server.UDPStats."+name, sample)
	}
	for name, change := range changes(distinct().TCP[0]) {
		sample := distinct()
		sample.TCP = []server.TCPStats{change}
		try("server.TCPStats."+name, sample)
	}
	for name, change := range changes(distinct().Admin) {
		sample := distinct()
		sample.Admin = change
		try("admin.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Routes[1].Stats.Servers[0]) {
		switch name {
		case "LastResort", "Far": // only servers of a service are
			continue
		case "Name", "Limitations", "LastError": // open sets: they are in /status
			continue
		}
		sample := distinct()
		sample.Routes[1].Stats.Servers = []upstream.ServerStats{change}
		try("upstream.ServerStats."+name, sample)
	}
	for name, change := range changes(*distinct().Zone) {
		sample := distinct()
		sample.Zone = &change
		try("zone.Stats."+name, sample)
	}
	for name, change := range sourceChanges() {
		sample := distinct()
		sample.Watch = &change
		try("watch."+name, sample)
	}
	for name, change := range changesBut(linked(), "Reason") { // a text for /status
		sample := distinct()
		sample.Link = &change
		try("netif.Stats."+name, sample)
	}
	for name, change := range changesBut(intercepted(), "LeaseErrors", "NewOwner", "NoneHeldFor") { // for /status and /readyz
		sample := distinct()
		sample.Intercept = &change
		try("intercept.Stats."+name, sample)
	}
	transparent := distinct()
	transparent.Mode = "transparent"
	try("Mode", transparent)
	for name, change := range changes(distinct().Probes[0].Stats) {
		if name == "Last" || name == "Row" || name == "LastError" { // for /status
			continue
		}
		sample := distinct()
		sample.Probes = []metrics.Probe{{Label: "cluster", Stats: change}, {Label: "outside"}}
		try("probe.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Source) {
		sample := distinct()
		sample.Source = change
		try("source.Stats."+name, sample)
	}
	for name, change := range changesBut(*distinct().Static, "Files") { // below
		sample := distinct()
		sample.Static = &change
		try("static.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Static.Files[0]) {
		sample := distinct()
		held := *sample.Static
		held.Files[0] = change
		sample.Static = &held
		if name == "Err" { // of another kind than the rest
			held.Files[0].Err = errors.New("lost")
		}
		try("static.FileStats."+name, sample)
	}
	for name, change := range changesBut(*distinct().Handover, "From", "Why", "To", "GivenAt", "LastError") { // for /status
		sample := distinct()
		sample.Handover = &change
		try("handover.Stats."+name, sample)
	}
	for name, change := range changes(distinct().Config) {
		sample := distinct()
		sample.Config = change
		try("Config."+name, sample)
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
