// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A DNS is what a pod's manifest says about its resolv.conf.
type DNS struct {
	Policy   string   `json:"policy,omitempty"` // spec.dnsPolicy; empty: ClusterFirst, or a policy like it
	Searches []string `json:"searches,omitempty"`
	Ndots    int      `json:"ndots,omitempty"` // 0: not set
	Skip     bool     `json:"skip,omitempty"`  // the pod has no search path here: a label says so, its list is too long, or its ndots is 0
}

func (d *DNS) equal(other *DNS) bool {
	return d.Policy == other.Policy && d.Ndots == other.Ndots && d.Skip == other.Skip && slices.Equal(d.Searches, other.Searches)
}

// A Host has what the kubelet makes the pods' resolv.conf of, besides their manifests.
type Host struct {
	Domain   string   // domain of the cluster
	Searches []string // search list of the host's resolv.conf
	Ndots    int      // ndots of the host's resolv.conf
	Except   []string // namespaces whose pods have no search path here
}

// Longer search lists are ignored or cut by some resolvers: glibc before 2.26 takes six, musl 255 bytes.
const (
	maxSuffixes    = 6
	maxSearchBytes = 255
)

// clusterNdots is the ndots that the kubelet sets with the policy ClusterFirst.
const clusterNdots = 5

// searches returns the search list and ndots that the kubelet gives to a pod, in its order and without duplicates.
func (h *Host) searches(namespace string, d *DNS) (list []string, ndots int) {
	switch d.Policy {
	case "None":
		ndots = 1
	case "Default":
		list, ndots = h.Searches, h.Ndots
	default:
		list = append([]string{namespace + ".svc." + h.Domain, "svc." + h.Domain, h.Domain}, h.Searches...)
		ndots = clusterNdots
	}
	var unique []string
	for _, suffix := range slices.Concat(list, d.Searches) {
		if suffix = dns.CanonicalName(suffix); !slices.Contains(unique, suffix) {
			unique = append(unique, suffix)
		}
	}
	if d.Ndots > 0 {
		ndots = d.Ndots
	}
	return unique, ndots
}

// A SearchPath has the suffixes that a pod's resolver appends, in order, to a name with fewer dots than ndots.
type SearchPath struct {
	Suffixes [][]byte // canonical wire form; they include the root, for the name itself, at the end unless the pod's list has it

	ndots   int
	longest int // bytes of the longest suffix
	seed    maphash.Seed
	found   [foundSlots]atomic.Pointer[found] // recent results, by hash of the prefix
}

const (
	foundTime  = 5 * time.Second // covers the time between a client's A and AAAA queries for one name
	foundSlots = 64              // names kept for a pod; a newer one may replace an older one
)

// A found is the result for one prefix until a time: its hash, and the index of the suffix with which the name was found to exist.
type found struct {
	hash  uint64
	at    int
	until time.Time
}

func (f *found) isOf(hash uint64, now time.Time) bool {
	return f != nil && f.hash == hash && now.Before(f.until)
}

// Found returns the index of the suffix with which a name was found to exist in the last five seconds, -1 for none. See Prefix for prefix.
func (p *SearchPath) Found(prefix []byte, now time.Time) int {
	hash := maphash.Bytes(p.seed, prefix)
	if f := p.found[hash%foundSlots].Load(); f.isOf(hash, now) {
		return f.at
	}
	return -1
}

// SetFound records the index of the suffix with which a name was found to exist, unless a smaller index is recorded. It returns the
// recorded index.
func (p *SearchPath) SetFound(prefix []byte, at int, now time.Time) int {
	hash := maphash.Bytes(p.seed, prefix)
	slot := &p.found[hash%foundSlots]
	for {
		old := slot.Load()
		if old.isOf(hash, now) && old.at <= at {
			return old.at
		}
		if slot.CompareAndSwap(old, &found{hash, at, now.Add(foundTime)}) {
			return at
		}
	}
}

// path returns the search path of a pod, nil if it has none, is exempt (Skip, Except), or has one that some resolvers ignore or cut.
func (h *Host) path(namespace string, d *DNS) *SearchPath {
	if h == nil || d.Skip || slices.Contains(h.Except, namespace) {
		return nil
	}
	list, ndots := h.searches(namespace, d)
	if len(list) == 0 || len(list) > maxSuffixes || list[0] == "." || len(strings.Join(list, " ")) > maxSearchBytes {
		return nil
	}
	if !slices.Contains(list, ".") {
		list = append(list, ".")
	}
	p := &SearchPath{ndots: ndots, seed: maphash.MakeSeed()}
	for _, suffix := range list {
		name, err := wire.AppendName(nil, suffix)
		if err != nil {
			return nil
		}
		p.Suffixes = append(p.Suffixes, name)
		p.longest = max(p.longest, len(name))
	}
	return p
}

// maxName is the longest name in bytes, in wire form.
const maxName = 255

// Prefix returns the labels of a name before the first suffix, or nil if the pod's resolver does not try the other suffixes after
// that name. The name is in canonical wire form.
func (p *SearchPath) Prefix(name []byte) []byte {
	end := len(name) - len(p.Suffixes[0])
	if end <= 0 || end+p.longest > maxName || !bytes.Equal(name[end:], p.Suffixes[0]) {
		return nil
	}
	labels, at := 0, 0
	for at < end {
		at += 1 + int(name[at])
		labels++
	}
	if at != end || labels > p.ndots {
		return nil
	}
	return name[:end]
}
