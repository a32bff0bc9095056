// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A PodMode determines which pod names exist.
type PodMode uint8

// The pod modes.
const (
	PodsDisabled PodMode = iota // no pod name exists
	PodsInsecure                // every address in an existing namespace has a name
	PodsVerified                // only addresses of pods in the store have names
)

// A Federation makes <service>.<namespace>.<Name>.svc an alias of the service here or, if it has no address here, of one in the
// federation. kube-dns answers without an alias if the service is here; SRV records need one, for the names below it.
type Federation struct {
	Name   string // a label
	Suffix string // what replaces the cluster domain in the alias: "<zone>.<region>.example.com."; empty: not known yet
}

// Config configures a Zone.
type Config struct {
	Store           *Store
	Domain          string        // "cluster.local."
	External        bool          // the zone has the services' external addresses, as <svc>.<ns>.<domain>
	Headless        bool          // with External: the zone has headless services without external addresses too
	TTL             time.Duration // TTL of every name without one of its own; 0 to 1 h, whole seconds
	Pods            PodMode
	PodNames        bool     // an endpoint without hostname is named by its pod, not by its address
	IgnoreEmpty     bool     // a ClusterIP service without a ready endpoint is denied; needs AllSlices
	AllSlices       bool     // the store gets every EndpointSlice, not only those of headless services
	LabelledSlices  bool     // the store gets only slices with the label of headless services
	NodeZone        string   // endpoints of this topology zone come first; empty: none do
	ReverseZones    []string // reverse zones of the cluster: unknown addresses in them are denied, other names are empty
	Namespaces      []string // namespaces with names; empty: all
	Excluded        []string // names below the domain, with all names below them, that this zone does not answer
	Federations     []Federation
	Fallthrough     []string      // names at or below these that do not exist are NotInZone, not denied
	StaleAfter      time.Duration // data older than this denies nothing; default 90 s
	Nameservers     []netip.Addr  // addresses of ns.dns.<domain>, or ns1.dns.<domain> with External
	KnownNamespaces bool          // only namespaces with an object in the store have names: a selector chooses them
	HasFallback     func() bool   // reports whether another resolver can be asked; nil: no

	// Cluster is set for the zone of a cluster set, whose ServiceImports are Services of type ClusterIP or Headless in
	// Store: the store of the cluster itself, which has the namespaces. Such a zone has no pods, and needs AllSlices.
	Cluster *Store
}

// defaultStaleAfter allows for the bookmarks of an API server, one a minute, to be half a minute late.
const defaultStaleAfter = 90 * time.Second

// A Zone answers from a store according to a configuration. It is immutable, cheap to create, and safe for concurrent use.
type Zone struct {
	cfg          Config
	domain       []byte              // canonical wire form
	depth        int                 // labels of a service's name left of the domain
	tree         string              // labels between a namespace and the domain, in wire form
	server       string              // labels of the name server left of the domain
	hostmaster   string              // labels of the SOA record's mailbox left of the domain
	ttl          uint32              // seconds
	nodeZone     []byte              // labels in wire form
	namespaces   map[string]struct{} // labels in wire form
	excluded     [][]byte            // canonical wire form
	reverseZones [][]byte            // canonical wire form
	fallthroughs [][]byte            // canonical wire form
	federations  map[string]string   // alias suffixes in canonical wire form, by Federation.Name; empty: not known yet
	ns4, ns6     string              // packed addresses of the name server
	soa          []byte              // the zone's SOA record without its owner
	soaReverse   []byte              // the SOA record for reverse names without its owner
	hasFallback  bool                // the configuration has a fallback, whether or not servers of it are known
	config       string              // see configText
}

// A Verdict is the outcome of a query.
type Verdict uint8

// The verdicts.
const (
	NotInZone   Verdict = iota // not this zone's name: answer as if there were no zone; nothing appended
	Answered                   // a complete answer appended
	Alias                      // a chain of CNAME records appended, which leaves the zone at Result.Target
	UseFallback                // this zone cannot answer now, another resolver can; nothing appended
	NotReady                   // this zone cannot answer now, and there is no fallback: SERVFAIL; nothing appended
)

// A Result describes the answer.
type Result struct {
	Verdict Verdict
	Denial  Denial // with Answered: why the name or the type is denied
	EDE     int    // Extended DNS Error code for the reply, or wire.EDENone
	Target  []byte // with Alias: its target in canonical wire form, within the appended message
	Limited bool   // records are missing because of a bound of the zone, not of the client
	Near    int    // number of addresses in the node's topology zone; they come first, and rotate separately
}

// maxDomain is the longest domain, in bytes, that leaves room for the names of its servers.
const maxDomain = wire.MaxName - len(labelsHostmaster) - len(labelsDNS)

// New returns a Zone. It fails if a name in the configuration is not a domain name. The store may be filled before or after.
func New(cfg Config) (*Zone, error) {
	domain, err := wireName(cfg.Domain)
	if err != nil {
		return nil, fmt.Errorf("cluster domain %q: %w", cfg.Domain, err)
	}
	if len(domain) > maxDomain {
		return nil, fmt.Errorf("cluster domain %q: longer than %d bytes", cfg.Domain, maxDomain)
	}
	config := configText(cfg)
	hasFallback := cfg.HasFallback != nil
	cfg.StaleAfter = cmp.Or(cfg.StaleAfter, defaultStaleAfter)
	if cfg.HasFallback == nil {
		cfg.HasFallback = func() bool { return false }
	}
	z := &Zone{cfg: cfg, domain: []byte(domain), ttl: uint32(cfg.TTL / time.Second), depth: depthService, tree: treeService, server: labelsNS, hostmaster: labelsHostmaster, federations: suffixesOf(cfg.Federations), config: config, hasFallback: hasFallback}
	if cfg.External {
		z.depth, z.tree, z.server, z.hostmaster = depthExternal, "", labelsNS1, labelsHostmaster+labelsDNS
	}
	if zone, err := appendLabels(nil, cfg.NodeZone); err == nil {
		z.nodeZone = zone
	}
	if len(cfg.Namespaces) > 0 {
		z.namespaces = make(map[string]struct{}, len(cfg.Namespaces))
	}
	for _, name := range cfg.Namespaces {
		z.namespaces[string(appendLabel(nil, name))] = struct{}{}
	}
	var names [][]byte
	for _, name := range slices.Concat(cfg.Excluded, cfg.ReverseZones, cfg.Fallthrough) {
		canonical, err := wireName(name)
		if err != nil {
			return nil, fmt.Errorf("name %q: %w", name, err)
		}
		names = append(names, []byte(canonical))
	}
	z.excluded, names = names[:len(cfg.Excluded)], names[len(cfg.Excluded):]
	z.reverseZones, z.fallthroughs = names[:len(cfg.ReverseZones)], names[len(cfg.ReverseZones):]
	v4, v6 := packAddrs(cfg.Nameservers)
	z.ns4, z.ns6 = string(v4), string(v6)
	z.prepareSOA()
	return z, nil
}

// suffixesOf returns the suffixes in canonical wire form, by name. A suffix that is invalid, because of a Node's label, is empty.
func suffixesOf(list []Federation) map[string]string {
	suffixes := make(map[string]string, len(list))
	for _, f := range list {
		suffixes[f.Name] = ""
		if suffix, err := wireName(f.Suffix); err == nil && f.Suffix != "" {
			suffixes[f.Name] = suffix
		}
	}
	return suffixes
}

// inSet reports whether this is the zone of a cluster set.
func (z *Zone) inSet() bool { return z.cfg.Cluster != nil }

// hasNamespace reports whether the namespace, whose label is in wire form, exists in the zone's store or, for a cluster set, the cluster's.
func (z *Zone) hasNamespace(label []byte) bool {
	n, _ := z.cfg.Store.findNamespace(label)
	if !n.exists() && z.inSet() {
		n, _ = z.cfg.Cluster.findNamespace(label)
	}
	return n.exists()
}

// namespaceStore returns the store that has the Namespace objects.
func (z *Zone) namespaceStore() *Store {
	if z.inSet() {
		return z.cfg.Cluster
	}
	return z.cfg.Store
}

// exposes reports whether the zone has names in the namespace, whose label is in wire form, and the kinds that this depends on.
func (z *Zone) exposes(label []byte) (ok bool, on kindSet) {
	if z.namespaces != nil {
		if _, ok := z.namespaces[string(label)]; !ok {
			return false, needsNothing
		}
	}
	if !z.cfg.KnownNamespaces {
		return true, needsNothing
	}
	n, _ := z.namespaceStore().findNamespace(label)
	return n != nil && n.declared.Load(), needsNamespaces
}

// exposesNode reports whether the node's namespace is exposed.
func (z *Zone) exposesNode(n *node) bool {
	var buf [1 + wire.MaxLabel]byte
	ok, _ := z.exposes(buf[:copy(buf[:], keyNamespace(n.key))])
	return ok
}

// servesReverse reports whether the name is in a reverse zone of the cluster.
func (z *Zone) servesReverse(name []byte) bool {
	return slices.ContainsFunc(z.reverseZones, func(zone []byte) bool { return isWithin(name, zone) })
}

// Serial returns the serial number of the zone's SOA record.
func (z *Zone) Serial() uint32 { return z.cfg.Store.Serial() }

// Timers of the SOA record in seconds, as in CoreDNS. Only secondary servers use the first three.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
	soaMaxTTL  = 300 // longest TTL of the record itself
)

// Labels below the zone in the SOA and NS records.
const (
	labelsNS         = "\x02ns\x03dns"
	labelsNS1        = "\x03ns1\x03dns" // name server of an external zone
	labelsHostmaster = "\x0ahostmaster"
)

// soaTail is the size of the five numbers at the end of a SOA record, from the serial on, in bytes.
const soaTail = 20

// prepareSOA builds the zone's two SOA records without the owner and the serial number. The forward one has pointers to
// the domain, which are filled in on use.
func (z *Zone) prepareSOA() {
	const pointer = "\xc0\x00"
	z.soa = z.appendSOA(nil, z.server+pointer, z.hostmaster+pointer)
	z.soaReverse = z.appendSOA(nil, z.server+string(z.domain), z.hostmaster+string(z.domain))
}

func (z *Zone) appendSOA(dst []byte, mname, rname string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, wire.TypeSOA)
	dst = binary.BigEndian.AppendUint16(dst, wire.ClassIN)
	dst = binary.BigEndian.AppendUint32(dst, min(z.ttl, soaMaxTTL))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(mname)+len(rname)+soaTail))
	dst = append(append(dst, mname...), rname...)
	for _, v := range []uint32{0, soaRefresh, soaRetry, soaExpire, z.ttl} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	return dst
}

// Complete reports whether the store has everything that Records lists.
func (z *Zone) Complete(now time.Time) bool {
	r := reply{zoneName: zoneName{z: z}, now: now}
	return r.freshnessOf(needsServices) >= stale && r.freshnessOf(needsSlices) != unsynced
}

// Records calls emit with the records of a transfer to a client. It stops at the first error of emit and returns it. emit may
// block; no lock is held.
//
// The whole zone is the SOA record, the other records, the SOA record again (RFC 5936 section 2.2). The records are those of the
// last version in [Versions] or, if none are kept, the current ones. They are ordered by service name. Names that are answered but not
// listed anywhere are omitted: those of pods, zonal names, ports without underscores.
//
// If an earlier version of the client is kept, emit gets the difference instead, incremental is true, and the order is that of
// RFC 1995 section 4: the new SOA record, the old one, deleted records, the new SOA record, added records, the new SOA record.
// The difference is sent only if it has fewer records than the zone.
func (z *Zone) Records(now time.Time, c Secondary, emit func(Record) error) (incremental bool, err error) {
	if !z.Complete(now) {
		return false, ErrNotReady
	}
	frozen := *z // the records must not depend on whether the fallback's servers are known now
	frozen.cfg.HasFallback = func() bool { return z.hasFallback }
	v := z.cfg.Store.versions.view(z, c)
	t := transfer{z: &frozen, now: now, emit: emit, serial: v.serial}
	if incremental = v.given && t.isShorter(&v); incremental {
		t.difference(v.changes, c.Serial)
	} else {
		t.whole(v.nodes)
	}
	if t.err == nil {
		z.cfg.Store.versions.give(givenVersion{z.config, c.Addr, v.serial})
	}
	return incremental, t.err
}

// exposed returns the node if the zone has records of it, else nil. n may be nil.
func (z *Zone) exposed(n *node) *node {
	if n == nil || n.svc == nil || !z.exposesNode(n) {
		return nil
	}
	return n
}
