import assert from "node:assert/strict";
import { test } from "node:test";
import { parse } from "../src/prices.js";

test("a price without cents", () => assert.equal(parse("1,250"), 125000));
test("a price with one digit of cents", () => assert.equal(parse("3.5"), 350));
