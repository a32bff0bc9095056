// SPDX-License-Identifier: Apache-2.0

// Package top turns what pods have asked into a table of rates.
//
// It has the document /top as typed values. It builds on every operating system, because the kubectl plugin reads the document too.
package top
