// SPDX-License-Identifier: Apache-2.0

package upstream

import "github.com/nodecache/node-cache/pkg/wire"

// A carrier brings queries to one upstream and brings back what it says: sockets of UDP, connections of TCP or TLS,
// requests of HTTPS. Its methods may be called from any goroutine.
type transport interface {
	// carry takes the try's query to be sent at the latest when later is flushed. An error says that nothing will
	// come of it; otherwise the try's carried is called once, unless drop comes first. That call comes after carry has
	// returned and with no lock of the carrier held. later is not nil and is not flushed here.
	send(a *attempt, batch *wire.SendBatch) error
	// drop says that nobody waits for the try any more. A call of carried may be under way all the same. It returns what
	// was wrong with the last malformed message that came for the try and did not end the wait, nil if there was none.
	cancel(a *attempt) (malformed error)
	// leave refuses queries from now on; those under way go on, and with the last of them all that is open is closed.
	shutdown()
	// retire closes what has no query now, and all else after its last query. Queries are still taken.
	closeIdle()
	// wait returns when, after leave or retire, nothing is open and no goroutine is left.
	wait()
	// open counts the sockets, connections or sessions that are open or opening, and those ever begun.
	openCount() (now int, ever uint64)
}

// A received is what came for a try. If err is nil and none of truncated, recased and noEDNS is set, m is a whole message,
// read from end to end, that answers the query.
type reply struct {
	m               *wire.Message // of which Raw is the message; valid during the call only
	truncated       bool          // over UDP: it came with TC set, and m is nil
	caseChanged     bool          // over UDP: its question is spelled in other letters than were sent, and m is nil
	headerOnlyRcode uint16        // the response code of a header without a question, see [wire.NoEDNS], and m is nil; 0: none
	err             error         // wraps errMalformed, errLimit, errDied, or is what the system said
}
