// Numbers, times and sizes in the reader's language: German or English.

const language = navigator.language || "en";
/** The locale of numbers and dates. */
export const locale = /^(de|en)\b/i.test(language) ? language : "en";

const whole = new Intl.NumberFormat(locale);
const compact = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const percents = new Intl.NumberFormat(locale, { style: "percent", maximumFractionDigits: 0 });
const time = new Intl.DateTimeFormat(locale, { hour: "numeric", minute: "2-digit" });
const day = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });

/** @param {number} value */
export const number = (value) => whole.format(value);
/** @param {number} value */
export const short = (value) => compact.format(value);
/** @param {number} share */
export const percent = (share) => percents.format(share);
/** @param {number} at */
export const moment = (at) => full.format(at);

/** @param {number} dollars */
export function money(dollars) {
  const digits = dollars > 0 && dollars < 0.1 ? 4 : 2;
  const format = new Intl.NumberFormat(locale, {
    style: "currency",
    currency: "USD",
    currencyDisplay: "narrowSymbol",
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return format.format(dollars);
}

/** @param {number} milliseconds */
export function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  // The number is rounded before it is split, so that neither `60 s` nor `1 min 60 s` is shown.
  const total = Math.round(seconds);
  if (total >= 60) return `${whole.format(Math.floor(total / 60))} min ${whole.format(total % 60)} s`;
  const digits = seconds < 9.95 ? 1 : 0;
  const format = new Intl.NumberFormat(locale, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${format.format(seconds)} s`;
}

/**
 * Returns the time of day if the moment is today, otherwise the date.
 * @param {number} at
 */
export function when(at) {
  const date = new Date(at);
  return date.toDateString() === new Date().toDateString() ? time.format(date) : day.format(date);
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${whole.format(bytes)} B`;
  if (bytes < 1_000_000) return `${compact.format(bytes / 1000)} kB`;
  return `${compact.format(bytes / 1_000_000)} MB`;
}
