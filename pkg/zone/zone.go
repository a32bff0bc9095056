// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A PodMode determines which pod names exist.
type PodMode uint8

// The pod modes.
const (
	PodsDisabled PodMode = iota // none
	PodsInsecure                // one for every address in an existing namespace
	PodsVerified                // only those of pods in the store
)

// Config configures a Zone.
type Config struct {
	Store           *Store
	Domain          string        // "cluster.local."
	TTL             time.Duration // 0 to 1 h, whole seconds; of every name that has none of its own
	Pods            PodMode
	PodNames        bool           // an endpoint without hostname is named by its pod, not by its address
	IgnoreEmpty     bool           // a ClusterIP service without a ready endpoint is denied; needs AllSlices
	AllSlices       bool           // the store gets every EndpointSlice, not only those of headless services
	NodeZone        string         // endpoints of this topology zone come first; empty: none do
	Ranges          []netip.Prefix // cluster ranges: reverse names in them that the store does not know are denied
	Namespaces      []string       // exposed; empty: all
	Excluded        []string       // names below the domain, with all names below them, that this zone does not answer
	StaleAfter      time.Duration  // data older than this denies nothing; default 90 s
	Nameservers     []netip.Addr   // addresses of ns.dns.<domain>
	KnownNamespaces bool           // only namespaces in the store are exposed: a selector chose them
	HasFallback     func() bool    // reports whether another resolver can be asked; nil: no
}

// defaultStaleAfter allows for three bookmarks of an API server, which come at least once a minute, and a margin.
const defaultStaleAfter = 90 * time.Second

// A Zone answers from a store according to a configuration. It is immutable, cheap to create, and safe for concurrent use.
type Zone struct {
	store           *Store
	domain          []byte // canonical wire form
	ttl             uint32 // seconds
	pods            PodMode
	podNames        bool
	skipEmpty       bool
	allSlices       bool
	knownNamespaces bool
	nodeZone        []byte // labels in wire form
	ranges          []netip.Prefix
	namespaces      map[string]struct{} // labels in wire form
	excluded        [][]byte            // canonical wire form
	staleAfter      time.Duration
	ns4, ns6        string // packed addresses
	hasFallback     func() bool
	soa             []byte // the zone's SOA record without its owner
	soaReverse      []byte // the same for reverse names
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
	EDE     int    // for the reply: an Extended DNS Error or wire.EDENone
	Target  []byte // of an Alias: canonical wire name, in the appended message
	Limited bool   // records are missing because of a bound of the zone, not of the client
}

// maxDomain is the longest cluster domain, in bytes, that leaves room for the names of its servers.
const maxDomain = wire.MaxName - len("\x0ahostmaster")

// New checks the configuration and returns a Zone. The store may be filled before or after.
func New(cfg Config) (*Zone, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	domain, err := wireName(cfg.Domain)
	if err != nil {
		return nil, fmt.Errorf("cluster domain %q: %w", cfg.Domain, err)
	}
	if len(domain) > maxDomain {
		return nil, fmt.Errorf("cluster domain %q: longer than %d bytes", cfg.Domain, maxDomain)
	}
	z := &Zone{
		store: cfg.Store, domain: []byte(domain), ttl: uint32(cfg.TTL / time.Second),
		pods: cfg.Pods, podNames: cfg.PodNames, skipEmpty: cfg.IgnoreEmpty, allSlices: cfg.AllSlices, knownNamespaces: cfg.KnownNamespaces,
		staleAfter: cfg.StaleAfter, hasFallback: cfg.HasFallback,
	}
	if z.staleAfter == 0 {
		z.staleAfter = defaultStaleAfter
	}
	if z.hasFallback == nil {
		z.hasFallback = func() bool { return false }
	}
	for _, p := range cfg.Ranges {
		z.ranges = append(z.ranges, p.Masked())
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
	for _, name := range cfg.Excluded {
		excluded, err := wireName(name)
		if err != nil {
			return nil, fmt.Errorf("excluded name %q: %w", name, err)
		}
		z.excluded = append(z.excluded, []byte(excluded))
	}
	v4, v6 := packAddrs(cfg.Nameservers)
	z.ns4, z.ns6 = string(v4), string(v6)
	z.prepareSOA()
	return z, nil
}

// check validates the configuration, except the domain.
func (cfg *Config) check() error {
	switch {
	case cfg.Store == nil:
		return errors.New("zone: no store set")
	case cfg.TTL < 0 || cfg.TTL > maxTTL:
		return fmt.Errorf("TTL %s: not within 0 to %s", cfg.TTL, maxTTL)
	case cfg.StaleAfter < 0:
		return fmt.Errorf("stale after %s: negative", cfg.StaleAfter)
	case cfg.IgnoreEmpty && !cfg.AllSlices:
		return errors.New("ignoring empty services requires all slices")
	case cfg.Pods > PodsVerified:
		return fmt.Errorf("pod mode %d: unknown", cfg.Pods)
	}
	for _, name := range cfg.Namespaces {
		if !isLabel(name) {
			return fmt.Errorf("namespace %q: not a namespace's name", name)
		}
	}
	return nil
}
