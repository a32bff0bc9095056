// SPDX-License-Identifier: Apache-2.0

// Command suite turns the JSON events of go test on standard input into a report for people.
package main
