// SPDX-License-Identifier: Apache-2.0

// Package static answers from what the configuration itself says: hosts and templates.
//
// Hosts are names with addresses, from the configuration or from files in the format
// of hosts(5), which are followed. A name that has addresses has nothing else: other
// types are denied. Names that nobody gave addresses are others' to answer.
//
// Templates make records of the name that is asked for. What they make is a function
// of the question alone, so that the last questions' answers are kept as they are.
//
// Who asks takes no lock. A change of a file makes a new table, which is swapped in
// one step.
package static
