// SPDX-License-Identifier: Apache-2.0

package main

// denials keeps NXDOMAIN once for all types of a name: whichever is asked first brings it for the others. Such an entry
// has the bytes of the one that brought it.
type denials struct {
	policy
	names []uint32 // nil: the trace has none
}

func (d denials) ask(q query) bool {
	if d.names != nil {
		q.id = d.names[q.id]
	}
	return d.policy.ask(q)
}
