// SPDX-License-Identifier: Apache-2.0

package kernelhits

// Why an interface that has the programs has no hits.
const (
	blockedIngress = "other programs or filters at ingress take the queries before the program"
	blockedEgress  = "other programs or filters at egress take the agent's replies before the program"
)

// A reach finds out whether packets of one family reach both programs of an interface. A program of others before them may end the
// chain, and nothing else tells: both are attached, and the pod gets its answers from the agent.
type reach struct{ ingress, egress gap }

// A gap is a time in which one of two things happens and the other does not.
type gap struct{ first uint64 } // when the one happened first since the other happened, in ns; 0: the other came last

// last takes when the one and the other have happened last, and returns for how long the one has happened without the other, in ns.
func (g *gap) last(one, other uint64) uint64 {
	if g.first == 0 || other >= g.first {
		g.first = 0
		if one > other {
			g.first = one
		}
		return 0
	}
	return max(one, g.first) - g.first // a permit that ends sets the time of the agent's replies to 0
}

// checkReach sets a.blocked. Replies to a pod whose queries the program does not see leave no doubt. Queries without replies do: a
// policy may deny them. So the program at egress, the first of a.programs, must have others before it.
func (l *links) checkReach(index int, a *attachment) {
	a.blocked = ""
	for i, family := range families() {
		var c hitsClient
		if l.k.objects.Clients.Lookup(hitsClientKey{Ifindex: uint32(index), Family: family}, &c) != nil {
			continue
		}
		r := &a.reach[i]
		unseen, unanswered := r.ingress.last(c.Answered, c.Seen), r.egress.last(c.Asked, c.Answered)
		switch {
		case unseen > uint64(l.blockedIn):
			a.blocked = blockedIngress
		case unanswered > uint64(l.blockedIn) && a.programs[0].follows():
			a.blocked = blockedEgress
		}
	}
}
