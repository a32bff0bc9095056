// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// A Denial says why the zone denies a name or a type.
type Denial uint8

// The denials.
const (
	NotDenied        Denial = iota
	NoType                  // the name exists, but has no records of the type
	NoNamespace             // no such Namespace
	NotServed               // the configuration leaves the Namespace out
	NoService               // no such Service
	NoPort                  // the Service has no such port or protocol
	NoEndpoint              // the Service has no such endpoint
	NoReadyEndpoint         // the Service has no endpoint that is ready, or none in the topology zone that is named
	NoExternal              // the Service has no external address
	BadExternalName         // the Service's externalName is no domain name
	NoPod                   // no pod in the Namespace has the address
	PodNamesDisabled        // the configuration serves no names of pods
	NoAddress               // nothing in the cluster has the address
	AliasChain              // the chain of aliases is too long, or endless
	ImpossibleName          // no object could have a name like this
	denialCount
)

// Denials returns the words for the denials, by number.
func Denials() [denialCount]string {
	return [denialCount]string{
		"", "no_type", "no_namespace", "not_served", "no_service", "no_port", "no_endpoint", "no_ready_endpoint",
		"no_external", "bad_external_name", "no_pod", "pods_disabled", "no_address", "alias_chain", "impossible_name",
	}
}

// String returns the denial as a word, empty for NotDenied.
func (d Denial) String() string { return Denials()[d] }

// Explain returns why name, in canonical wire form, was denied: d, but NoNamespace for NoService if the Namespace is missing
// too. Answers do not look that up: most of them deny a name that a search path has made.
func (zs Zones) Explain(d Denial, name []byte) Denial {
	if d != NoService {
		return d
	}
	for _, z := range zs {
		n := zoneName{z: z}
		if !n.splitName(name, wire.HeaderLen) {
			continue
		}
		at := n.labels - z.depth + 1 // index of the namespace's label
		if at < 1 || !z.namespaceStore().states[Namespaces].expected.Load() || z.hasNamespace(n.labelRange(at, at+1)) {
			return d
		}
		if _, ok := z.federations[string(n.label(at))]; ok { // the name's alias is what was denied
			return d
		}
		return NoNamespace
	}
	return d
}
