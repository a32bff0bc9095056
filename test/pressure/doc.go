// SPDX-License-Identifier: Apache-2.0

// Package pressure shows the built binary under more load than it can take: floods of names that nobody has asked for,
// clients that ask for more than their share, one that attacks in every way at once, and little memory.
//
// The figures of docs/reliability.md are of
//
//	SOAK=1 go test -v -timeout 1h ./test/pressure
//
// and the plot docs/memory.svg is of the same with -plot. Without SOAK the same tests run for seconds each, at lower
// rates. What limits memory needs root. The environment may set:
//
//	E2E_BINARY  a node-cache to test in place of one built from this tree
//	E2E_RACE    not empty: build node-cache with the race detector
//	E2E_ATTACK  the attacks of TestWorstPod, comma-separated, in place of all
package pressure
