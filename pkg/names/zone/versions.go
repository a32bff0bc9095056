// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Versions are the states of a store's zones that secondary servers may have. With them a transfer to such a server has
// only what has changed (RFC 1995). From the first transfer on, the serial number is that of the last version, not that of
// the last change: [Versions.Cut] makes a version of the changes since the last one.
//
// A version takes the memory of the objects that the next one replaced. A transfer computes its records from these objects.
type Versions struct {
	store *Store

	// The following fields are guarded by the store's mu.
	zones     []string         // Zone.config of each zone; empty: no versions are kept
	selective bool             // Namespace objects select what one of the zones has
	last      map[string]*node // nodes changed since the last version, as they were in it, nil if absent; a nil map: no version yet
	lastBytes int              // memory of last
	past      []version        // earlier versions, oldest first
	bytes     int              // memory of past and last
	given     []givenVersion   // versions that secondary servers got from this process, oldest first
}

// A version is an earlier state: the nodes that the next version changed, as they were before, nil if absent.
type version struct {
	serial uint32
	nodes  map[string]*node // nodes by key
	bytes  int              // memory of nodes
}

// A givenVersion is a version of a zone that a client got from this process. Another process, such as a second pod of the
// central resolver, may have had other records under the serial number.
type givenVersion struct {
	zone   string // Zone.config
	client netip.Addr
	serial uint32
}

// Bounds of a store's versions. Beyond them clients with the oldest versions get the whole zone.
const (
	maxVersionBytes  = 8 << 20
	maxGivenVersions = 1 << 10
	changedNodeSize  = nodeSize + 64 // bytes of a changed node, with its place in the map
)

// Keep keeps versions for those of the zones that use the store. If their configurations differ from those of the last call, the
// records may differ, so the earlier versions are dropped.
func (v *Versions) Keep(zones Zones, now time.Time) {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	configs, selective := make([]string, 0, len(zones)), false
	for _, z := range zones {
		if z.cfg.Store == v.store {
			configs, selective = append(configs, z.config), selective || z.cfg.KnownNamespaces
		}
	}
	if slices.Equal(configs, v.zones) {
		return
	}
	v.zones, v.selective = configs, selective
	if v.last != nil {
		v.drop(now)
	}
	if len(configs) == 0 {
		v.last, v.given = nil, nil
	}
}

// Cut ends the current version if the store has changed since, and returns the serial number of the new one. Secondary
// servers see a change only after Cut. Call it at most once a second, so that the serial number does not run ahead of the clock.
func (v *Versions) Cut(now time.Time) (serial uint32) {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	if len(v.last) > 0 {
		v.past = append(v.past, version{serial: v.store.Serial(), nodes: v.last, bytes: v.lastBytes})
		v.begin(now)
	}
	return v.store.Serial()
}

// begin begins a new version, which has no changes yet.
func (v *Versions) begin(now time.Time) {
	defer v.store.reporter.begin()() // a change for the observer: the SOA records of earlier denials have the old serial
	v.last, v.lastBytes = make(map[string]*node), 0
	next, clock := v.store.Serial()+1, uint32(now.Unix())
	if int32(clock-next) > 0 { // RFC 1982
		next = clock
	}
	v.store.serial.Store(next)
}

// drop begins a version and drops the earlier ones.
func (v *Versions) drop(now time.Time) {
	v.begin(now)
	v.past, v.bytes = nil, 0
}

// record records that n replaces old, which may be nil. n has no service and no slices if the node is removed.
func (v *Versions) record(old, n *node, now time.Time) {
	if v.last == nil {
		return
	}
	before, known := v.last[n.key]
	if !known {
		if old != nil && !old.empty() {
			before = old
		}
		v.last[n.key] = before
		v.count(changedNodeSize + len(n.key))
	}
	if before != nil {
		v.count(replacedBytes(before, old, n))
	}
	for v.bytes > maxVersionBytes && len(v.past) > 0 {
		v.bytes -= v.past[0].bytes
		v.past = v.past[1:]
	}
	if v.bytes > maxVersionBytes {
		v.drop(now)
	}
}

func (v *Versions) count(bytes int) {
	v.bytes += bytes
	v.lastBytes += bytes
}

// replacedBytes returns the bytes of the objects that before and old share and n no longer has.
func replacedBytes(before, old, n *node) (bytes int) {
	if before.svc == old.svc && old.svc != n.svc {
		bytes += serviceCost(n.key, old.svc)
	}
	for _, s := range old.slices {
		if n.slice(s.id) != s && before.slice(s.id) == s {
			bytes += sliceCost(s)
		}
	}
	return bytes
}

// A change is a node in two versions; nil if the version has no such node, or does not expose it.
type change struct{ old, new *node }

// A view is the last version of a zone, for one client.
type view struct {
	serial  uint32
	nodes   []*node
	given   bool     // the client has a version that it got from this process
	changes []change // changes since the client's version; empty without given
}

// view returns the last version of a zone for a transfer to a client.
func (v *Versions) view(z *Zone, c Secondary) (w view) {
	s := v.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.last == nil && len(v.zones) > 0 {
		v.last = make(map[string]*node)
	}
	w.serial = s.Serial()
	add := func(n *node) {
		if n = z.exposed(n); n != nil {
			w.nodes = append(w.nodes, n)
		}
	}
	for n := range s.nodes.all() {
		if _, known := v.last[n.key]; !known {
			add(n)
		}
	}
	for _, n := range v.last {
		add(n)
	}
	var old map[string]*node
	old, given := v.since(z, c)
	w.given = given
	for key, n := range old {
		now, known := v.last[key]
		if !known {
			now, _ = s.findNode([]byte(key))
		}
		if c := (change{z.exposed(n), z.exposed(now)}); c != (change{}) {
			w.changes = append(w.changes, c)
		}
	}
	return w
}

// since returns the nodes that have changed between a client's version and the last one, as they were in the client's. It reports
// false if the client's version is not kept, or did not come from this process.
func (v *Versions) since(z *Zone, c Secondary) (old map[string]*node, ok bool) {
	past := slices.IndexFunc(v.past, func(p version) bool { return p.serial == c.Serial })
	if c.Serial == v.store.Serial() {
		past = len(v.past)
	}
	if !c.HasSerial || past < 0 || !slices.Contains(v.zones, z.config) || !slices.Contains(v.given, givenVersion{z.config, c.Addr, c.Serial}) {
		return nil, false
	}
	old = make(map[string]*node)
	for _, p := range v.past[past:] {
		for key, n := range p.nodes {
			if _, known := old[key]; !known {
				old[key] = n
			}
		}
	}
	return old, true
}

// give records that a secondary server got a version.
func (v *Versions) give(to givenVersion) {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	if v.last == nil || slices.Contains(v.given, to) {
		return
	}
	if len(v.given) == maxGivenVersions {
		v.given = v.given[1:]
	}
	v.given = append(v.given, to)
}

// configText returns a text of the configuration. Zones with equal texts have the same records for the same objects.
func configText(cfg Config) string {
	fallback := cfg.HasFallback != nil
	cfg.Store, cfg.HasFallback, cfg.NodeZone = nil, nil, "" // NodeZone only orders records
	return fmt.Sprintf("%v %v", cfg, fallback)
}
