// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
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
	PodsDisabled PodMode = iota // none
	PodsInsecure                // one for every address in an existing namespace
	PodsVerified                // only those of pods in the store
)

// Config configures a Zone.
type Config struct {
	Store           *Store
	Domain          string        // "cluster.local."
	External        bool          // it has the services' external addresses, as <svc>.<ns>.<domain>
	Headless        bool          // with External: headless services without external addresses too
	TTL             time.Duration // 0 to 1 h, whole seconds; of every name that has none of its own
	Pods            PodMode
	PodNames        bool     // an endpoint without hostname is named by its pod, not by its address
	IgnoreEmpty     bool     // a ClusterIP service without a ready endpoint is denied; needs AllSlices
	AllSlices       bool     // the store gets every EndpointSlice, not only those of headless services
	LabelledSlices  bool     // the store gets only slices with the label of headless services
	NodeZone        string   // endpoints of this topology zone come first; empty: none do
	ReverseZones    []string // reverse zones of the cluster: unknown addresses in them are denied, other names are empty
	Namespaces      []string // exposed; empty: all
	Excluded        []string // names below the domain, with all names below them, that this zone does not answer
	Federations     []Federation
	Fallthrough     []string      // names at or below these that do not exist are not in the zone, instead of denied
	StaleAfter      time.Duration // data older than this denies nothing; default 90 s
	Nameservers     []netip.Addr  // addresses of ns.dns.<domain>
	KnownNamespaces bool          // only namespaces in the store are exposed: a selector chose them
	HasFallback     func() bool   // reports whether another resolver can be asked; nil: no

	// Cluster is set for the zone of a cluster set, whose ServiceImports are Services of type ClusterIP or Headless in
	// Store: the store of the cluster itself, which has the namespaces. Such a zone has no pods, and needs AllSlices.
	Cluster *Store
}

// defaultStaleAfter allows for three bookmarks of an API server, which come at least once a minute, and a margin.
const defaultStaleAfter = 90 * time.Second

// A Zone answers from a store according to a configuration. It is immutable, cheap to create, and safe for concurrent use.
type Zone struct {
	cfg          Config
	domain       []byte              // canonical wire form
	tree         string              // labels between a namespace and the domain, in wire form
	server       string              // labels of the name server left of the domain
	hostmaster   string              // the same for the mailbox of the SOA record
	ttl          uint32              // seconds
	nodeZone     []byte              // labels in wire form
	namespaces   map[string]struct{} // labels in wire form
	excluded     [][]byte            // canonical wire form
	reverseZones [][]byte            // canonical wire form
	fallthroughs [][]byte            // canonical wire form
	federations  map[string]string   // suffixes in canonical wire form, by label without its length; empty: not known yet
	ns4, ns6     string              // packed addresses
	soa          []byte              // the zone's SOA record without its owner
	soaReverse   []byte              // the same for reverse names
	hasFallback  bool                // the configuration has a fallback, whether or not servers of it are known
	config       string              // differs for configurations whose zones may have other records
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
	Near    int    // addresses of the node's topology zone, which come first; the two groups rotate apart
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
	z := &Zone{cfg: cfg, domain: []byte(domain), ttl: uint32(cfg.TTL / time.Second), tree: treeService, server: labelsNS, hostmaster: labelsHostmaster, federations: suffixesOf(cfg.Federations), config: config, hasFallback: hasFallback}
	if cfg.External {
		z.tree, z.server, z.hostmaster = "", labelsNS1, labelsHostmaster+labelsDNS
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
