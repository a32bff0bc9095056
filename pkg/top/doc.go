// SPDX-License-Identifier: Apache-2.0

// Package top turns what pods have asked into a table of rates.
//
// It holds the document /top as typed values, and builds on every system: the kubectl plugin reads the document, too.
package top
